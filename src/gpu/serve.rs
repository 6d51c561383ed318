//! The cuFile process: carries out the orders that come over its socket, until nobody needs it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSliceMut, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use super::held::Held;
use super::plan::Copy;
use super::protocol::{Answer, Filled, LONGEST_LINE, ORDER, Order, handle_of};
use super::reader::{ReadError, Reader};
use crate::sys::cuda::{IpcHandle, Memory};
use crate::sys::owned_fd;

/// How long a process lives on that holds nothing: its context takes memory of the device.
const IDLE: Duration = Duration::from_secs(30);
/// How far apart words on progress are.
const PROGRESS_STEP: u64 = 64 << 20;

/// Serves `socket` until it is closed, nothing was asked for a while, or something is in doubt.
pub fn serve(socket: UnixStream) -> io::Result<()> {
    let mut process = Process { socket, readers: Vec::new(), held: Held::default() };
    loop {
        let patience = process.held.expire(Instant::now()).unwrap_or(IDLE).max(Duration::from_millis(1));
        process.socket.set_read_timeout(Some(patience))?;
        match receive(&process.socket) {
            Ok(Some((order, file))) => process.carry_out(order, file)?,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if process.held.expire(Instant::now()).is_none() && patience == IDLE {
                    return Ok(());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// The next order and its file. None at the end.
fn receive(socket: &UnixStream) -> io::Result<Option<(Order, File)>> {
    let mut first = [0];
    let mut buffers = [IoSliceMut::new(&mut first)];
    let mut space = nix::cmsg_space!(std::os::fd::RawFd);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut buffers, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let bytes = message.bytes;
    let mut file = None;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            // All are taken, so that none stays open.
            file = descriptors.into_iter().map(owned_fd).map(File::from).reduce(|_, last| last);
        }
    }
    if bytes == 0 {
        return Ok(None);
    }
    let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let file = file.filter(|_| first[0] == ORDER).ok_or_else(|| invalid("an order comes without a file"))?;
    // The next order comes only after this one was answered, so that nothing of it is read here.
    let mut line = Vec::new();
    BufReader::new(socket.take(LONGEST_LINE as u64)).read_until(b'\n', &mut line)?;
    let order = serde_json::from_slice(&line).map_err(|error| invalid(&error.to_string()))?;
    Ok(Some((order, file)))
}

struct Process {
    socket: UnixStream,
    /// By device.
    readers: Vec<(u32, Reader)>,
    held: Held<Rc<Memory>>,
}

impl Process {
    /// An order that cannot be carried out is answered. An error means that this process must end: its other side is
    /// gone, or memory may still be written to.
    fn carry_out(&mut self, order: Order, file: File) -> io::Result<()> {
        let filled = self.fill(&order, file);
        let in_doubt = matches!(&filled, Err(ReadError::Cuda(_) | ReadError::CuFile(_) | ReadError::Excess { .. }));
        let answer = match filled {
            Ok(filled) => Answer::Filled(filled),
            Err(error) => Answer::Refused(error.to_string()),
        };
        send(&self.socket, &answer)?;
        if in_doubt { Err(io::Error::other("what the device does is not known")) } else { Ok(()) }
    }

    fn fill(&mut self, order: &Order, file: File) -> Result<Filled, ReadError> {
        let start = Instant::now();
        let index = match self.readers.iter().position(|(device, _)| *device == order.device) {
            Some(index) => index,
            None => {
                self.readers.push((order.device, Reader::open(order.device)?));
                self.readers.len() - 1
            }
        };
        let reader = &mut self.readers[index].1;
        let mode = reader.mode();
        if order.direct_only && !mode.is_direct() {
            return Err(ReadError::NotDirect(mode.to_string()));
        }
        let spans = order.spans();
        let done = |bytes, was_held| Filled { bytes, seconds: start.elapsed().as_secs_f64(), mode, was_held };
        if order.into.is_none() && self.held.has(order.device, &order.content) {
            return Ok(done(spans.iter().map(|span| span.len).sum(), true));
        }
        let target = target(reader, order)?;
        if order.into.is_some()
            && let Some((memory, copies)) = self.held.take(order.device, &order.content, &spans)
        {
            return copy(reader, &memory, &target, &copies).map(|bytes| done(bytes, true));
        }
        let (mut said, socket) = (0, &self.socket);
        let bytes = reader.fill(file, order.file_bytes, &spans, &target, &mut |bytes| {
            if bytes - said >= PROGRESS_STEP {
                said = bytes;
                // Nobody may be listening any more: that is seen with the answer.
                let _ = send(socket, &Answer::Progress(bytes));
            }
        })?;
        if order.into.is_none() {
            let until = Instant::now() + Duration::from_secs(order.hold_seconds);
            self.held.keep(order.device, order.content.clone(), spans, target, until);
        }
        Ok(done(bytes, false))
    }
}

/// Where the bytes go: another process's memory, or some of this one's own.
fn target(reader: &Reader, order: &Order) -> Result<Rc<Memory>, ReadError> {
    let len = usize::try_from(order.size_bytes).unwrap_or(usize::MAX);
    if len == 0 {
        return Err(ReadError::Absent("there is nothing to read".to_owned()));
    }
    let Some(handle) = &order.into else { return Ok(Memory::new(reader.context(), len)?) };
    let handle = handle_of(handle).ok_or_else(|| ReadError::Absent("the handle of the memory is none".to_owned()))?;
    Ok(Memory::open(reader.context(), IpcHandle(handle), len)?)
}

fn copy(reader: &Reader, from: &Rc<Memory>, to: &Rc<Memory>, copies: &[Copy]) -> Result<u64, ReadError> {
    for copy in copies {
        reader.stream().copy((from, copy.from as usize), (to, copy.to as usize), copy.len as usize)?;
    }
    reader.stream().wait()?;
    Ok(copies.iter().map(|copy| copy.len).sum())
}

fn send(mut socket: &UnixStream, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    socket.write_all(&line)
}
