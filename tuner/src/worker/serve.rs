//! The child's side: answers requests on stdin until it closes.

use super::frame::{self, Reply};
use serde::{Serialize, de::DeserializeOwned};
use std::process::ExitCode;
use std::sync::mpsc::channel;

/// Answers each request with `handle`, one after the other, until stdin closes or an answer is the last.
///
/// Requests are read by a thread of their own, so that the worker sees its parent's end even in the
/// middle of a kernel that hangs; it then kills itself, since an orderly exit would wait for the kernel.
pub(super) fn serve<Q, A>(mut handle: impl FnMut(Q) -> Reply<A>) -> ExitCode
where
    Q: DeserializeOwned + Send + 'static,
    A: Serialize,
{
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        while let Ok(Some(message)) = frame::read(&mut stdin) {
            let request = match frame::decode::<Q>(&message) {
                Ok(request) => request,
                Err(error) => {
                    eprintln!("not a request: {error}");
                    break;
                }
            };
            if sender.send(request).is_err() {
                return;
            }
        }
        let myself = rustix::process::getpid();
        let _ = rustix::process::kill_process(myself, rustix::process::Signal::KILL);
    });
    for request in requests {
        let reply = handle(request);
        let sent = frame::encode(&reply).and_then(|message| frame::write(&mut std::io::stdout().lock(), &message));
        if let Err(error) = sent {
            eprintln!("answer not sent: {error}");
            return ExitCode::FAILURE;
        }
        if reply.last {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
