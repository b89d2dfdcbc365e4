//! A worker process as its parent sees it: started when needed, killed when late, replaced when dead.

use super::frame::{self, Reply};
use nvkv_spec::{Outcome, Stage};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes of a worker's stderr that are kept: its last words.
const LAST_WORDS: usize = 4096;
/// How long a killed or dying process is waited for before it is left to the system: one that
/// hangs inside the driver cannot be reaped.
const REAP: Duration = Duration::from_secs(5);

/// What to run as a worker.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<OsString>,
}

impl Program {
    /// The `nvkv-tune` at `path` with the hidden subcommand `worker ARGUMENTS…`.
    pub(super) fn new(path: PathBuf, arguments: &[&str]) -> Self {
        Self { path, arguments: std::iter::once(&"worker").chain(arguments).map(OsString::from).collect() }
    }
}

/// The running binary. A path that cannot be told fails at the first call, with a message.
pub(super) fn this_binary() -> PathBuf {
    std::env::current_exe().unwrap_or_default()
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum CallError {
    /// Nothing came in time; the worker was killed.
    #[error("no answer within {0:?}; the worker was killed")]
    Timeout(Duration),
    /// The worker died, or spoke garbage and was killed; its last words.
    #[error("{0}")]
    Died(String),
}

impl CallError {
    /// As the outcome of a trial that was at `stage`.
    pub(super) fn outcome(self, stage: Stage) -> Outcome {
        match self {
            Self::Timeout(limit) => Outcome::Timeout { stage, seconds: limit.as_secs_f64() },
            Self::Died(detail) => Outcome::Crashed { stage, detail },
        }
    }
}

/// A worker that is there whenever it is called.
pub(super) struct Worker {
    program: Program,
    process: Option<Process>,
}

impl Worker {
    pub(super) fn new(program: Program) -> Self {
        Self { program, process: None }
    }

    /// Sends `request` and waits up to `limit` for the answer. After an error the process is gone, and
    /// the next call starts another.
    pub(super) fn call<Q: Serialize, A: DeserializeOwned>(
        &mut self,
        request: &Q,
        limit: Duration,
    ) -> Result<A, CallError> {
        let request = frame::encode(request).map_err(|e| CallError::Died(format!("request not sent: {e}")))?;
        let mut process = match self.process.take() {
            Some(process) => process,
            None => Process::start(&self.program).map_err(|e| {
                CallError::Died(format!("{} does not start as a worker: {e}", self.program.path.display()))
            })?,
        };
        let reply: Reply<A> = process.call(request, limit)?;
        if !reply.last {
            self.process = Some(process);
        }
        Ok(reply.answer)
    }
}

/// A running worker. Pipes are served by threads, so that neither a worker that does not read nor
/// one that does not answer can block the parent.
struct Process {
    child: Child,
    requests: Sender<Vec<u8>>,
    replies: Receiver<io::Result<Option<Vec<u8>>>>,
    stderr: Arc<Mutex<VecDeque<u8>>>,
}

impl Process {
    fn start(program: &Program) -> io::Result<Self> {
        let mut child = Command::new(&program.path)
            .args(&program.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own: Ctrl-C on the terminal is for the tuner, which ends after the trial at hand.
            .process_group(0)
            .spawn()?;
        let closed = || io::Error::other("a pipe is missing");
        let mut stdin = child.stdin.take().ok_or_else(closed)?;
        let mut stdout = child.stdout.take().ok_or_else(closed)?;
        let mut errors = child.stderr.take().ok_or_else(closed)?;
        let (requests, to_send) = channel::<Vec<u8>>();
        let (received, replies) = channel();
        std::thread::spawn(move || to_send.iter().all(|request| frame::write(&mut stdin, &request).is_ok()));
        std::thread::spawn(move || {
            loop {
                let message = frame::read(&mut stdout);
                let more = matches!(message, Ok(Some(_)));
                if received.send(message).is_err() || !more {
                    break;
                }
            }
        });
        let stderr = Arc::new(Mutex::new(VecDeque::new()));
        let words = stderr.clone();
        std::thread::spawn(move || keep_last_words(&mut errors, &words));
        Ok(Self { child, requests, replies, stderr })
    }

    fn call<A: DeserializeOwned>(&mut self, request: Vec<u8>, limit: Duration) -> Result<A, CallError> {
        // A send fails only where the worker has closed its pipes, and then so does the receive.
        let _ = self.requests.send(request);
        let message = match self.replies.recv_timeout(limit) {
            Err(RecvTimeoutError::Timeout) => return Err(CallError::Timeout(limit)),
            Err(RecvTimeoutError::Disconnected) | Ok(Ok(None)) => return Err(self.died("no answer")),
            Ok(Err(error)) => return Err(self.died(&format!("not an answer: {error}"))),
            Ok(Ok(Some(message))) => message,
        };
        frame::decode(&message).map_err(|error| self.died(&format!("not an answer: {error}")))
    }

    fn died(&mut self, what: &str) -> CallError {
        let status = match self.reap() {
            // 9 is what the kernel sends where memory runs out; no worker sends it to itself while its parent lives.
            Some(status) if status.signal() == Some(9) => format!("{status}: killed from outside, out of memory?"),
            Some(status) => status.to_string(),
            None => "killed after it closed its pipes".to_string(),
        };
        let words: Vec<u8> = self.stderr.lock().map(|w| w.iter().copied().collect()).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        let words = if words.trim().is_empty() { String::new() } else { format!("; last words: {}", words.trim()) };
        CallError::Died(format!("{what}; {status}{words}"))
    }

    /// Gives the process a moment to end by itself (its stderr is complete then), or kills it.
    fn reap(&mut self) -> Option<ExitStatus> {
        let own_end = wait(&mut self.child, Duration::from_millis(500));
        if own_end.is_none() {
            let _ = self.child.kill();
            wait(&mut self.child, REAP);
        }
        // The thread that reads stderr sees its end just after the process does.
        std::thread::sleep(Duration::from_millis(20));
        own_end
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            wait(&mut self.child, REAP);
        }
    }
}

/// Waits up to `limit` for the end of `child`.
fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
            _ => return None,
        }
    }
}

fn keep_last_words(from: &mut impl Read, words: &Mutex<VecDeque<u8>>) {
    let mut piece = [0; 1024];
    while let Ok(read @ 1..) = from.read(&mut piece) {
        let Ok(mut words) = words.lock() else { return };
        words.extend(&piece[..read]);
        let excess = words.len().saturating_sub(LAST_WORDS);
        words.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that is a shell script. A frame is `\nnn\000\000\000` and JSON.
    fn shell(script: &str) -> Worker {
        let arguments = ["-c", script].map(OsString::from).to_vec();
        Worker::new(Program { path: "/bin/sh".into(), arguments })
    }

    fn call(worker: &mut Worker, limit_ms: u64) -> Result<u32, CallError> {
        worker.call(&"request", Duration::from_millis(limit_ms))
    }

    /// 25 = octal 31 bytes: `{"answer":7,"last":false}`.
    const ANSWER_SEVEN: &str = r#"printf '\031\000\000\000{"answer":7,"last":false}'"#;

    #[test]
    fn a_hang_is_killed_in_time_and_the_next_call_starts_afresh() {
        let marker = tempfile::tempdir().unwrap();
        let flag = marker.path().join("second");
        let script = format!("if [ -e {0} ]; then {ANSWER_SEVEN}; fi; touch {0}; sleep 60", flag.display());
        let mut worker = shell(&script);
        let start = Instant::now();
        assert_eq!(call(&mut worker, 300), Err(CallError::Timeout(Duration::from_millis(300))));
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_eq!(call(&mut worker, 5000), Ok(7));
    }

    #[test]
    fn a_crash_gives_its_status_and_its_last_words() {
        let error = call(&mut shell("echo illegal address >&2; exit 3"), 5000).unwrap_err();
        let CallError::Died(detail) = &error else { panic!("{error:?}") };
        assert!(detail.contains("exit status: 3") && detail.contains("illegal address"), "{detail}");
        let signal = call(&mut shell("kill -SEGV $$"), 5000).unwrap_err().to_string();
        assert!(signal.contains("signal: 11") && !signal.contains("last words"), "{signal}");
        let killed = call(&mut shell("kill -KILL $$"), 5000).unwrap_err().to_string();
        assert!(killed.contains("memory"), "{killed}");
    }

    #[test]
    fn garbage_is_an_error_and_not_an_answer() {
        for garbage in ["echo hello world", r"printf '\005\000\000\000hello'", r"printf '\011\000\000\000{'"] {
            let error = call(&mut shell(garbage), 5000).unwrap_err();
            assert!(matches!(&error, CallError::Died(detail) if detail.contains("answer")), "{garbage}: {error:?}");
        }
    }

    #[test]
    fn a_worker_that_does_not_read_does_not_block_its_parent() {
        let mut worker = shell("sleep 60");
        let request = "x".repeat(1 << 20);
        let answer: Result<u32, _> = worker.call(&request, Duration::from_millis(200));
        assert_eq!(answer, Err(CallError::Timeout(Duration::from_millis(200))));
    }

    #[test]
    fn a_last_answer_is_given_and_its_process_left() {
        let last = r#"printf '\030\000\000\000{"answer":7,"last":true}'; sleep 60"#;
        let mut worker = shell(last);
        assert_eq!(call(&mut worker, 5000), Ok(7));
        assert!(worker.process.is_none());
        let mut stays = shell(&format!("{ANSWER_SEVEN}; sleep 60"));
        assert_eq!(call(&mut stays, 5000), Ok(7));
        assert!(stays.process.is_some());
    }

    #[test]
    fn only_the_end_of_stderr_is_kept() {
        let mut worker = shell("i=0; while [ $i -lt 2000 ]; do echo 0123456789 >&2; i=$((i+1)); done; echo end >&2");
        let detail = call(&mut worker, 10_000).unwrap_err().to_string();
        assert!(detail.ends_with("end") && detail.len() < 2 * LAST_WORDS, "{} bytes", detail.len());
    }
}
