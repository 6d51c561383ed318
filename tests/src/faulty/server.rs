//! The file system itself: every request becomes an operation on the plain folder, unless the script says otherwise.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirEntryExt, FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use rustix::fs::{OFlags, Timespec, Timestamps};

use super::script::{Fault, Op, Script};

/// The kernel believes nothing: every fault is met.
const NOT_AT_ALL: Duration = Duration::ZERO;
const ROOT: u64 = 1;

/// Requests that were put aside, to be answered later.
#[derive(Default)]
pub struct Parked(Mutex<Vec<Box<dyn FnOnce() + Send>>>);

impl Parked {
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Answers them now, on this thread.
    pub fn release(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        all.into_iter().for_each(|answer| answer());
    }
}

struct Files {
    root: PathBuf,
    /// By inode number of the plain file. Names that went are left: they lead nowhere.
    paths: Mutex<HashMap<u64, PathBuf>>,
    open: Mutex<HashMap<u64, (Arc<File>, PathBuf)>>,
    next: AtomicU64,
}

pub struct Server {
    files: Arc<Files>,
    script: Arc<Script>,
    parked: Arc<Parked>,
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(nix::libc::EIO))
}

fn attr(metadata: &Metadata, ino: u64) -> FileAttr {
    let time = |seconds: i64, nanoseconds: i64| UNIX_EPOCH + Duration::new(seconds as u64, nanoseconds as u32);
    FileAttr {
        ino: INodeNo(ino),
        size: metadata.size(),
        blocks: metadata.blocks(),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        ctime: time(metadata.ctime(), metadata.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: kind(metadata.file_type()),
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

fn kind(kind: fs::FileType) -> FileType {
    match kind {
        kind if kind.is_dir() => FileType::Directory,
        kind if kind.is_symlink() => FileType::Symlink,
        kind if kind.is_fifo() => FileType::NamedPipe,
        _ => FileType::RegularFile,
    }
}

impl Files {
    fn path(&self, ino: INodeNo) -> io::Result<PathBuf> {
        if ino.0 == ROOT {
            return Ok(self.root.clone());
        }
        self.paths.lock().get(&ino.0).cloned().ok_or_else(|| io::Error::from_raw_os_error(nix::libc::ESTALE))
    }

    /// What is at `path` now, known from here on.
    fn entry(&self, path: &Path) -> io::Result<FileAttr> {
        let metadata = fs::symlink_metadata(path)?;
        if path == self.root {
            return Ok(attr(&metadata, ROOT));
        }
        self.paths.lock().insert(metadata.ino(), path.to_owned());
        Ok(attr(&metadata, metadata.ino()))
    }

    fn add(&self, file: File, path: PathBuf) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(handle, (Arc::new(file), path));
        handle
    }

    fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        let open = self.open.lock();
        open.get(&handle.0)
            .map(|(file, _)| Arc::clone(file))
            .ok_or_else(|| io::Error::from_raw_os_error(nix::libc::EBADF))
    }

    fn path_of(&self, handle: FileHandle) -> PathBuf {
        self.open.lock().get(&handle.0).map(|(_, path)| path.clone()).unwrap_or_default()
    }

    fn open_file(&self, path: &Path, flags: i32, extra: OFlags) -> io::Result<u64> {
        let wanted = OFlags::from_bits_retain(flags as u32) & (OFlags::RWMODE | OFlags::TRUNC);
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        let file = rustix::fs::open(path, wanted | extra | OFlags::CLOEXEC, mode)?;
        Ok(self.add(file.into(), path.to_owned()))
    }
}

type Answer<R, T> = (R, io::Result<T>);

impl Server {
    pub fn new(backing: &Path, script: Arc<Script>, parked: Arc<Parked>) -> Server {
        let (paths, open) = (Mutex::default(), Mutex::default());
        let files = Files { root: backing.to_owned(), paths, open, next: AtomicU64::new(1) };
        Server { files: Arc::new(files), script, parked }
    }

    /// Does `work` on the plain folder and hands `reply` its result, or what the script has instead.
    fn answer<R: Send + 'static, T: 'static>(
        &self,
        (op, path, bytes): (Op, &Path, Range<u64>),
        reply: R,
        work: impl FnOnce(&Files) -> io::Result<T> + Send + 'static,
        send: impl FnOnce(Answer<R, T>, Option<Fault>) + Send + 'static,
    ) {
        match self.script.fault(op, path, bytes) {
            Some(Fault::Errno(number)) => send((reply, Err(io::Error::from_raw_os_error(number))), None),
            Some(Fault::Hang) => {
                let files = Arc::clone(&self.files);
                self.parked.0.lock().push(Box::new(move || send((reply, work(&files)), None)));
            }
            short => send((reply, work(&self.files)), short),
        }
    }

    fn on_name<T: 'static>(
        &self,
        op: Op,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) {
        let path = match self.files.path(parent) {
            Ok(parent) => parent.join(name),
            Err(error) => return reply.error(errno(&error)),
        };
        let at = path.clone();
        let work = move |files: &Files| {
            work(&at)?;
            files.entry(&at)
        };
        self.answer((op, &path, 0..u64::MAX), reply, work, |(reply, result), _| match result {
            Ok(attr) => reply.entry(&NOT_AT_ALL, &attr, Generation(0)),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn empty(
        &self,
        op: Op,
        path: &Path,
        reply: ReplyEmpty,
        work: impl FnOnce(&Files) -> io::Result<()> + Send + 'static,
    ) {
        self.answer((op, path, 0..u64::MAX), reply, work, |(reply, result), _| match result {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        });
    }
}

fn times(accessed: Option<TimeOrNow>, modified: Option<TimeOrNow>) -> Timestamps {
    let spec = |time: Option<TimeOrNow>| match time {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(TimeOrNow::SpecificTime(time)) => {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            Timespec { tv_sec: since.as_secs() as i64, tv_nsec: i64::from(since.subsec_nanos()) }
        }
    };
    Timestamps { last_access: spec(accessed), last_modification: spec(modified) }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.on_name(Op::Look, parent, name, reply, |_| Ok(()));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let path = self.files.path(ino).unwrap_or_default();
        let at = path.clone();
        let work = move |files: &Files| match handle {
            Some(handle) => files.file(handle)?.metadata().map(|metadata| attr(&metadata, ino.0)),
            None => files.entry(&at),
        };
        self.answer((Op::Look, &path, 0..u64::MAX), reply, work, |(reply, result), _| match result {
            Ok(attr) => reply.attr(&NOT_AT_ALL, &attr),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let path = self.files.path(ino).unwrap_or_default();
        let at = path.clone();
        let work = move |files: &Files| {
            if let Some(size) = size {
                File::options().write(true).open(&at)?.set_len(size)?;
            }
            if let Some(mode) = mode {
                fs::set_permissions(&at, std::os::unix::fs::PermissionsExt::from_mode(mode & 0o7777))?;
            }
            if accessed.is_some() || modified.is_some() {
                let at_link = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(rustix::fs::CWD, &at, &times(accessed, modified), at_link)?;
            }
            files.entry(&at)
        };
        self.answer((Op::Write, &path, 0..u64::MAX), reply, work, |(reply, result), _| match result {
            Ok(attr) => reply.attr(&NOT_AT_ALL, &attr),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        self.on_name(Op::Change, parent, name, reply, |path| fs::create_dir(path));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let path = self.files.path(parent).unwrap_or_default().join(name);
        let at = path.clone();
        self.empty(Op::Change, &path, reply, move |_| fs::remove_file(at));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let path = self.files.path(parent).unwrap_or_default().join(name);
        let at = path.clone();
        self.empty(Op::Change, &path, reply, move |_| fs::remove_dir(at));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let from = self.files.path(parent).unwrap_or_default().join(name);
        let to = self.files.path(new_parent).unwrap_or_default().join(new_name);
        let at = from.clone();
        self.empty(Op::Change, &from, reply, move |files| {
            fs::rename(at, &to)?;
            files.entry(&to).map(drop)
        });
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let path = self.files.path(ino).unwrap_or_default();
        let at = path.clone();
        let work = move |files: &Files| files.open_file(&at, flags.0, OFlags::empty());
        self.answer((Op::Open, &path, 0..u64::MAX), reply, work, |(reply, result), _| match result {
            // Every read comes here, as long as it is asked for: a short answer is one to who reads.
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, flags: i32, reply: ReplyCreate) {
        let path = self.files.path(parent).unwrap_or_default().join(name);
        let at = path.clone();
        let work = move |files: &Files| {
            let handle = files.open_file(&at, flags, OFlags::CREATE)?;
            Ok((files.entry(&at)?, handle))
        };
        self.answer((Op::Change, &path, 0..u64::MAX), reply, work, |(reply, result), _| match result {
            Ok((attr, handle)) => {
                let direct = FopenFlags::FOPEN_DIRECT_IO;
                reply.created(&NOT_AT_ALL, &attr, Generation(0), FileHandle(handle), direct);
            }
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let path = self.files.path_of(handle);
        let work = move |files: &Files| {
            let (file, mut bytes) = (files.file(handle)?, vec![0; size as usize]);
            let length = file.read_at(&mut bytes, offset)?;
            bytes.truncate(length);
            Ok(bytes)
        };
        let range = offset..offset + u64::from(size);
        self.answer((Op::Read, &path, range), reply, work, |(reply, result), fault| match (result, fault) {
            (Ok(bytes), Some(Fault::Short(most))) => reply.data(&bytes[..bytes.len().min(most)]),
            (Ok(bytes), _) => reply.data(&bytes),
            (Err(error), _) => reply.error(errno(&error)),
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (path, data) = (self.files.path_of(handle), data.to_vec());
        let range = offset..offset + data.len() as u64;
        let work = move |files: &Files| files.file(handle)?.write_at(&data, offset);
        self.answer((Op::Write, &path, range), reply, work, |(reply, result), _| match result {
            Ok(written) => reply.written(written as u32),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.files.open.lock().remove(&handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let path = self.files.path_of(handle);
        self.empty(Op::Write, &path, reply, move |files| files.file(handle)?.sync_all());
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let path = self.files.path(ino).unwrap_or_default();
        let work = |_: &Files| Ok(());
        self.answer((Op::List, &path, 0..u64::MAX), reply, work, |(reply, result), _| match result {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectory) {
        let path = self.files.path(ino).unwrap_or_default();
        let at = path.clone();
        let work = move |_: &Files| {
            let entry = |entry: io::Result<fs::DirEntry>| {
                entry.and_then(|e| Ok((e.ino(), kind(e.file_type()?), e.file_name())))
            };
            fs::read_dir(at)?.map(entry).collect::<io::Result<Vec<_>>>()
        };
        self.answer((Op::List, &path, 0..u64::MAX), reply, work, move |(mut reply, result), _| match result {
            Ok(entries) => {
                for (next, (ino, kind, name)) in (offset + 1..).zip(entries.into_iter().skip(offset as usize)) {
                    if reply.add(INodeNo(ino), next, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096);
    }
}
