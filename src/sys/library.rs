//! Libraries that are loaded at run time, with every function that is used of them looked up before the first call.

use std::ffi::OsString;

#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    #[error("{} cannot be loaded: {reason}", name.to_string_lossy())]
    Missing { name: OsString, reason: String },
    #[error("{} has no {function}: it is too old", name.to_string_lossy())]
    Incomplete { name: OsString, function: &'static str },
}

/// The name of a library, or what an environment variable says instead.
pub fn name_of(variable: &str, otherwise: &str) -> OsString {
    std::env::var_os(variable).filter(|name| !name.is_empty()).unwrap_or_else(|| otherwise.into())
}

/// Declares a struct of C functions, and how it is filled from a library. Each is there, or the struct is not.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident { $($function:ident($($argument:ty),*) $(-> $result:ty)?;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        struct $name {
            $($function: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $name {
            fn find(
                library: &libloading::Library,
                name: &std::ffi::OsStr,
            ) -> Result<Self, crate::sys::library::LibraryError> {
                Ok(Self {
                    $($function: {
                        let symbol = concat!(stringify!($function), "\0");
                        // SAFETY: the type is the one that the vendor documents for this name, which includes the
                        // version of the function; whoever keeps the pointer keeps the library with it.
                        match unsafe { library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(symbol.as_bytes()) } {
                            Ok(found) => *found,
                            Err(_) => return Err(crate::sys::library::LibraryError::Incomplete {
                                name: name.to_owned(),
                                function: stringify!($function),
                            }),
                        }
                    },)*
                })
            }
        }
    };
}
pub(super) use functions;

/// Loads `name` as the dynamic linker finds it.
pub(super) fn load(name: OsString) -> Result<(libloading::Library, OsString), LibraryError> {
    // SAFETY: what a library does when it is loaded is its own affair. This is done for the vendor's libraries alone,
    // by processes that exist for nothing else.
    match unsafe { libloading::Library::new(&name) } {
        Ok(library) => Ok((library, name)),
        Err(error) => Err(LibraryError::Missing { name, reason: error.to_string() }),
    }
}
