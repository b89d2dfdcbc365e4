//! Several GPUs of one host: whichever is free takes the next problem.
//!
//! All kernels of a problem are timed on one board, since boards of a model differ by more than kernels that are near
//! each other; results of any board serve all of them.

use super::compile::Built;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// Hands the pieces of `work` to whichever of `workers` is free. A worker that fails takes its piece with it and no
/// more; the others go on. All failed: what is left stays, and whoever sends more learns it.
///
/// # Errors
/// The first failure, once no worker has anything left to do.
pub fn share<W: Send, T: Send>(
    work: Receiver<T>,
    workers: Vec<W>,
    run: impl Fn(&mut W, T) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let work = Arc::new(Mutex::new(work));
    let run = &run;
    std::thread::scope(|scope| {
        let one = |mut worker: W| {
            let work = work.clone();
            scope.spawn(move || {
                loop {
                    // The lock is held while waiting: the next piece is for one of those that wait, whichever.
                    let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    match next {
                        Ok(piece) => run(&mut worker, piece)?,
                        Err(_) => return anyhow::Ok(()),
                    }
                }
            })
        };
        let threads: Vec<_> = workers.into_iter().map(one).collect();
        drop(work); // The last worker's end closes the channel.
        let panicked = |_| anyhow::anyhow!("a GPU's thread panicked; this is a defect of nvkv-tune");
        let ends: Vec<_> = threads.into_iter().map(|thread| thread.join().map_err(panicked).flatten()).collect();
        ends.into_iter().collect()
    })
}

/// Collects compiled kernels until those of a case are all there, then sends them; `waiting` says how many each case has.
pub fn by_case<'a>(built: Receiver<Built<'a>>, mut waiting: HashMap<usize, usize>, ready: &Sender<Vec<Built<'a>>>) {
    let mut collected: HashMap<usize, Vec<Built<'a>>> = HashMap::new();
    for one in built {
        let case = one.candidate.case;
        collected.entry(case).or_default().push(one);
        let left = waiting.entry(case).or_default();
        *left = left.saturating_sub(1);
        if *left == 0 && ready.send(collected.remove(&case).unwrap_or_default()).is_err() {
            return; // No GPU is left; `built` closes, and the compilers end.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// A fake GPU: what it did, and how long one piece takes it.
    struct Fake<'a> {
        did: &'a Mutex<Vec<(usize, u32)>>,
        number: usize,
        ms: u64,
        fails_at: Option<u32>,
    }

    fn run(fake: &mut Fake<'_>, piece: u32) -> anyhow::Result<()> {
        anyhow::ensure!(fake.fails_at.is_none_or(|n| piece < n), "GPU {} is gone", fake.number);
        std::thread::sleep(Duration::from_millis(fake.ms));
        fake.did.lock().unwrap().push((fake.number, piece));
        Ok(())
    }

    fn pieces(n: u32) -> Receiver<u32> {
        let (sender, work) = channel();
        (0..n).for_each(|piece| sender.send(piece).unwrap());
        work
    }

    #[test]
    fn each_piece_is_done_once_and_a_faster_gpu_does_more() {
        let did = Mutex::new(Vec::new());
        let fake = |number, ms| Fake { did: &did, number, ms, fails_at: None };
        share(pieces(30), vec![fake(0, 20), fake(1, 2)], run).unwrap();
        let did = did.into_inner().unwrap();
        assert_eq!(did.len(), 30);
        assert_eq!(did.iter().map(|(_, piece)| *piece).collect::<HashSet<_>>(), (0..30).collect());
        let by = |number| did.iter().filter(|(n, _)| *n == number).count();
        assert!(by(1) > 2 * by(0), "{did:?}");
    }

    #[test]
    fn a_gpu_that_goes_takes_one_piece_with_it_and_is_named() {
        let did = Mutex::new(Vec::new());
        let fake = |number, fails_at| Fake { did: &did, number, ms: 2, fails_at };
        let error = share(pieces(20), vec![fake(0, Some(3)), fake(1, None)], run).unwrap_err();
        assert!(error.to_string().contains("GPU 0 is gone"), "{error}");
        assert_eq!(did.into_inner().unwrap().len(), 19);
    }

    #[test]
    fn where_every_gpu_is_gone_the_sender_learns_it() {
        let did = Mutex::new(Vec::new());
        let (sender, work) = channel();
        let sending = std::thread::spawn(move || (0..1_000_000).take_while(|n| sender.send(*n).is_ok()).count());
        let fake = |number| Fake { did: &did, number, ms: 1, fails_at: Some(5) };
        share(work, vec![fake(0), fake(1)], run).unwrap_err();
        assert!(sending.join().unwrap() < 1_000_000);
    }
}
