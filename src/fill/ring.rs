//! The driver on io_uring: one thread that issues direct reads and settles them. Whatever would hold it up goes to
//! readers of its own.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use super::engine::Shared;
use super::piece::{Mode, Piece};
use super::readers::Handoff;
use crate::sys::uring::{Read, Ring, Waker};

/// How long to leave a ring alone that cannot be waited on: the kernel is out of memory.
const TROUBLE_PAUSE: Duration = Duration::from_millis(10);

/// Makes a ring for `depth` requests on this thread, reports, and works until the queue is closed.
pub(crate) fn run(
    shared: &Shared,
    handoff: &Handoff,
    depth: usize,
    waker: Arc<Waker>,
    report: SyncSender<std::io::Result<()>>,
) {
    let mut ring = match Ring::<Piece>::new(depth, waker) {
        Ok(ring) => ring,
        Err(error) => {
            let _ = report.send(Err(error));
            return;
        }
    };
    let _ = report.send(Ok(()));
    let mut in_trouble = false;
    loop {
        for (Read { token: piece, file, memory, .. }, result) in ring.completed() {
            // Whoever is told holds the memory alone.
            drop((file, memory));
            let result = piece.source.outcome(&piece, result);
            shared.settle(piece, Mode::Direct, result);
        }
        while let Some(piece) = next(shared) {
            issue(&mut ring, handoff, piece);
        }
        let (closed, pause_ends) = {
            let queue = shared.queue.lock();
            (queue.is_closed(), queue.next_pause_ends())
        };
        if closed && ring.is_idle() {
            break;
        }
        let result = ring.wait(pause_ends.map(|until| until.saturating_duration_since(Instant::now())));
        if let Err(error) = &result {
            if !in_trouble {
                tracing::warn!("the io_uring cannot be waited on, trying again: {error}");
            }
            std::thread::sleep(TROUBLE_PAUSE);
        }
        in_trouble = result.is_err();
    }
    handoff.close();
}

fn next(shared: &Shared) -> Option<Piece> {
    let mut queue = shared.queue.lock();
    let piece = queue.next(Instant::now());
    let finished = queue.take_finished();
    drop(queue);
    shared.completions.push(finished);
    piece
}

fn issue(ring: &mut Ring<Piece>, handoff: &Handoff, piece: Piece) {
    let mode = piece.source.mode(&piece);
    let Some(direct) = piece.source.ring_file().filter(|_| mode == Mode::Direct) else {
        return handoff.give(piece, mode);
    };
    let (file, memory) = (Arc::clone(direct), Arc::clone(&piece.memory));
    let read = Read { file, offset: piece.bytes.start, memory, target: piece.target(), token: piece };
    if let Err(read) = ring.read(read) {
        handoff.give(read.token, mode);
    }
}
