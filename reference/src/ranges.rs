//! Files read by range, so that no file is ever one allocation. Positioned reads
//! rather than a memory map: a map needs `unsafe`, since another process may change
//! or shorten the file under it.

use crate::checkpoint::hex;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Bytes that are hashed at once.
const HASHED_BYTES: usize = 1 << 20;

/// `len` bytes from `start` on.
pub(crate) fn read(path: &Path, start: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = vec![0; len];
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// SHA-256 of a file, lower-case hex.
pub(crate) fn sha256(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    for_each_part(path, |part| hash.update(part))?;
    Ok(hex(&hash.finalize()))
}

/// SHA-256 of bytes, lower-case hex.
pub(crate) fn sha256_of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// A file's bytes in order, part by part.
pub(crate) fn for_each_part(path: &Path, mut with: impl FnMut(&[u8])) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut part = vec![0; HASHED_BYTES];
    loop {
        match file.read(&mut part)? {
            0 => return Ok(()),
            len => with(&part[..len]),
        }
    }
}
