//! Reads files into device memory through cuFile, in a process that exists for this.
//!
//! Reads go into registered buffers of this process, aligned and several at once; from there what is wanted is copied
//! within the device, at the speed of its memory, to wherever it belongs. So nothing depends on how tensors are aligned,
//! nor on whether cuFile can register another process's memory.

use std::fs::File;
use std::rc::Rc;

use super::mode::Mode;
use super::plan::{ALIGNMENT, OutOfBounds, Read, Span, reads};
use super::presence::Presence;
use super::{LIBCUDA, LIBCUDA_VARIABLE, LIBCUFILE, LIBCUFILE_VARIABLE, new_enough};
use crate::sys::cuda::{Context, Cuda, CudaError, Memory, Stream};
use crate::sys::cufile::{Batch, Buffer, CuFile, CuFileError, Handle, Request, read};
use crate::sys::library::{LibraryError, name_of};

/// Of each half: while one is read into, the other is copied from.
const SLOTS: usize = 4;
/// Bytes of a slot, the second where the device has no room for the first.
const CHUNKS: [u64; 2] = [16 << 20, 2 << 20];
/// How often a read that gave fewer bytes is continued.
const MAX_CONTINUED: u32 = 1 << 16;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{0}")]
    Absent(String),
    #[error(transparent)]
    Library(#[from] LibraryError),
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(transparent)]
    CuFile(#[from] CuFileError),
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    #[error("the file ends at {0}: it was cut short while it was read")]
    Short(u64),
    #[error("cuFile gave {got} bytes for a read of {wanted}")]
    Excess { wanted: usize, got: usize },
    #[error("cuFile would read through RAM on this machine ({0})")]
    NotDirect(String),
}

/// One device, ready to be read into.
pub struct Reader {
    // In the order in which they must go.
    batches: Option<[Batch; 2]>,
    buffer: Rc<Buffer>,
    stream: Stream,
    cufile: Rc<CuFile>,
    context: Rc<Context>,
    mode: Mode,
    chunk: u64,
}

impl Reader {
    pub fn open(device: u32) -> Result<Self, ReadError> {
        Presence::look().cufile().map_err(ReadError::Absent)?;
        let cuda = Cuda::load(name_of(LIBCUDA_VARIABLE, LIBCUDA))?;
        new_enough(cuda.version()?).map_err(ReadError::Absent)?;
        cuda.start()?;
        let count = cuda.count()?;
        if i64::from(device) >= i64::from(count) {
            return Err(ReadError::Absent(format!("there is no cuda:{device}; devices here: {count}, from cuda:0 on")));
        }
        let context = Context::of(&cuda, device)?;
        let cufile = CuFile::open(name_of(LIBCUFILE_VARIABLE, LIBCUFILE))?;
        let properties = cufile.properties()?;
        let most = match properties.max_direct_io_bytes / ALIGNMENT * ALIGNMENT {
            0 => CHUNKS[0],
            most => most,
        };
        let (memory, chunk) = staging(&context, most)?;
        let buffer = Buffer::new(&cufile, memory);
        let both = || Some([Batch::new(&cufile, SLOTS)?, Batch::new(&cufile, SLOTS)?]);
        let may_batch = properties.max_batch == 0 || properties.max_batch as usize >= SLOTS;
        let batches = if may_batch { both() } else { None };
        let stream = Stream::new(&context)?;
        Ok(Self { batches, buffer, stream, mode: Mode::of(&properties), cufile, context, chunk })
    }

    pub fn context(&self) -> &Rc<Context> {
        &self.context
    }

    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Reads `spans` of `file` to their places in `target`. `progress` hears of bytes that have arrived. Gives the sum.
    ///
    /// After an error this must not be used again: something may still be in flight, and the process should end.
    pub fn fill(
        &mut self,
        file: File,
        file_len: u64,
        spans: &[Span],
        target: &Rc<Memory>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, ReadError> {
        let reads = reads(spans, file_len, target.len() as u64, self.chunk)?;
        let handle = Handle::new(&self.cufile, file)?;
        let groups: Vec<&[Read]> = reads.chunks(SLOTS).collect();
        let mut done = 0;
        if !groups.is_empty() {
            self.submit(&handle, groups[0], 0)?;
        }
        for (index, group) in groups.iter().enumerate() {
            let half = index % 2;
            // The other half is on its way while this one is waited for and copied.
            if let Some(next) = groups.get(index + 1) {
                self.submit(&handle, next, 1 - half)?;
            }
            self.finish(&handle, group, half)?;
            for (slot, read) in group.iter().enumerate() {
                let base = self.slot(half, slot);
                for copy in &read.copies {
                    let (from, to) = (base + copy.from as usize, copy.to as usize);
                    self.stream.copy((self.buffer.memory(), from), (target, to), copy.len as usize)?;
                    done += copy.len;
                }
            }
            self.stream.wait()?;
            progress(done);
        }
        Ok(done)
    }

    /// Where the slot begins in the buffer.
    fn slot(&self, half: usize, slot: usize) -> usize {
        (half * SLOTS + slot) * self.chunk as usize
    }

    fn requests(&self, group: &[Read], half: usize) -> Vec<Request> {
        let request = |(slot, read): (usize, &Read)| Request {
            offset: read.offset,
            len: read.len as usize,
            at: self.slot(half, slot),
        };
        group.iter().enumerate().map(request).collect()
    }

    /// Starts a group, where there are batches.
    fn submit(&mut self, handle: &Rc<Handle>, group: &[Read], half: usize) -> Result<(), ReadError> {
        let requests = self.requests(group, half);
        let Some(batches) = &mut self.batches else { return Ok(()) };
        Ok(batches[half].submit(handle, &self.buffer, &requests)?)
    }

    /// Returns when all of a group is in its slots.
    fn finish(&mut self, handle: &Rc<Handle>, group: &[Read], half: usize) -> Result<(), ReadError> {
        let requests = self.requests(group, half);
        let mut got = vec![0; requests.len()];
        if let Some(batches) = &mut self.batches {
            loop {
                let ended = batches[half].wait()?;
                if ended.is_empty() {
                    break;
                }
                for (index, bytes) in ended {
                    if let Some(got) = got.get_mut(index) {
                        *got = bytes?;
                    }
                }
            }
        }
        for (request, got) in requests.into_iter().zip(got) {
            self.complete(handle, request, got)?;
        }
        Ok(())
    }

    /// Reads on where fewer bytes came than were asked for.
    fn complete(&self, handle: &Handle, request: Request, mut got: usize) -> Result<(), ReadError> {
        for _ in 0..MAX_CONTINUED {
            if got > request.len {
                return Err(ReadError::Excess { wanted: request.len, got });
            }
            if got == request.len {
                return Ok(());
            }
            let rest = Request { offset: request.offset + got as u64, len: request.len - got, at: request.at + got };
            match read(handle, &self.buffer, rest)? {
                0 => break,
                more => got += more,
            }
        }
        Err(ReadError::Short(request.offset + got as u64))
    }
}

/// Memory for all slots, and the bytes of one.
fn staging(context: &Rc<Context>, most: u64) -> Result<(Rc<Memory>, u64), CudaError> {
    let [large, small] = CHUNKS.map(|chunk| chunk.min(most));
    let of = |chunk: u64| Memory::new(context, 2 * SLOTS * chunk as usize).map(|memory| (memory, chunk));
    of(large).or_else(|_| of(small))
}
