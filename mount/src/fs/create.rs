//! Makes files and opens them at once.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use weightfs::failpoint;
use weightfs::fill::SourceFile;

use super::namespace::key_at;
use super::open::{Open, OpenReply, SOURCE_FLAGS};
use super::{Caller, Fs, NewMode};
use crate::attr::Entry;
use crate::control::rights::Reader;
use crate::error::FsError;
use crate::source::{is_plain, open_at, proc_path, reopen};

/// How often a name may come and go while one caller wants it.
const ATTEMPTS: usize = 64;

/// The access rights of a file beyond its mode.
const ACCESS_ACL: &str = "system.posix_acl_access";

impl Fs {
    pub fn create(
        self: &Arc<Self>,
        parent: u64,
        name: &OsStr,
        mode: NewMode,
        flags: OFlags,
        caller: &Caller,
    ) -> Result<(Entry, OpenReply), FsError> {
        let directory_node = self.node(parent)?;
        let (directory, _) = self.locate(&directory_node)?;
        if !is_plain(name) {
            return Err(Errno::INVAL.into());
        }
        if let Some(handle) = self.opened_before(caller) {
            let entry = self.plain_entry(&directory_node, directory.as_fd(), name)?;
            return self.answer_again(handle).map(|reply| (entry, reply));
        }
        let before = [key_at(directory.as_fd(), name), None];
        let plain = (flags & SOURCE_FLAGS) | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let was_made = self.made_before(caller, before);
        let make = if was_made { plain } else { plain | OFlags::CREATE | OFlags::EXCL };
        // Made with O_EXCL whether that was asked for or not: only what is new is given to its maker. If somebody else
        // made it in between the kernel looks again, and checks whether the caller may open it.
        let make = || Ok(File::from(rustix::fs::openat(&directory, name, make, mode.within(directory.as_fd()))?));
        let mut made = self.step(caller, before, make);
        let mut attempts = 0;
        while let Err(FsError::Source(Errno::EXIST)) = made
            && !flags.contains(OFlags::EXCL)
        {
            attempts += 1;
            if caller.thread == 0 || self.bounced.second_try(caller.thread, parent).is_none() || attempts > ATTEMPTS {
                return Err(FsError::Stale);
            }
            // It has looked again already, and there was nothing again.
            match open_existing(directory.as_fd(), name, flags, caller) {
                Ok(file) => {
                    let entry = self.plain_entry(&directory_node, directory.as_fd(), name)?;
                    return self.open_made(entry, file, flags, caller);
                }
                Err(FsError::Source(Errno::NOENT)) => made = self.step(caller, before, make),
                Err(error) => return Err(error),
            }
        }
        let file = made?;
        failpoint::pass("create.made");
        self.give(directory.as_fd(), file.as_fd(), caller)?;
        // Not by a resident number: somebody may have given the name to a model meanwhile, and what is empty is opened.
        let entry = self.plain_entry(&directory_node, directory.as_fd(), name)?;
        // It is empty.
        self.open_made(entry, file, flags & !OFlags::TRUNC, caller)
    }

    /// The kernel hears of an entry only together with its open file.
    fn open_made(
        &self,
        entry: Entry,
        file: File,
        flags: OFlags,
        caller: &Caller,
    ) -> Result<(Entry, OpenReply), FsError> {
        let opened = self.node(entry.node).and_then(|node| {
            let source = Arc::new(SourceFile::new(file));
            self.open_from_source(Open { node: &node, source, flags, caller })
        });
        match opened {
            Ok(reply) => Ok((entry, reply)),
            Err(error) => {
                self.forget(entry.node, 1);
                Err(error)
            }
        }
    }
}

/// Opens what others have made in place of the caller. The kernel has not seen it, and so has not checked whether the
/// caller may: rights beyond the mode are not believed in.
fn open_existing(directory: BorrowedFd<'_>, name: &OsStr, flags: OFlags, caller: &Caller) -> Result<File, FsError> {
    let located = open_at(directory, name)?;
    let stat = rustix::fs::fstat(&located)?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(FsError::Stale);
    }
    let bits = match flags & OFlags::RWMODE {
        OFlags::RDONLY => 0o4,
        OFlags::WRONLY => 0o2,
        _ => 0o6,
    } | if flags.contains(OFlags::TRUNC) { 0o2 } else { 0 };
    let reader = Reader { uid: caller.uid, groups: vec![caller.gid] };
    let has_acl = rustix::fs::getxattr_query(proc_path(located.as_fd()), ACCESS_ACL).is_ok_and(|length| length > 0);
    let is_owner = caller.uid == stat.st_uid;
    let allowed = reader.may(stat.st_mode, stat.st_uid, stat.st_gid, bits) && (is_owner || !has_acl);
    if caller.uid != 0 && !allowed {
        return Err(Errno::ACCESS.into());
    }
    Ok(reopen(located.as_fd(), flags & SOURCE_FLAGS & !OFlags::TRUNC)?)
}
