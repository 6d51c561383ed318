//! Content that says what it is: every 4 KiB page names its file, its generation and its place, and carries a
//! checksum. A reader that meets any page at any time can tell whether it may have met it.

use crate::data::mix;

/// Bytes in a page, header included.
pub const PAGE: usize = 4096;

const MAGIC: u64 = 0x7765_6967_6874_6673;
const HEADER: usize = 40;

/// What a page says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    pub file: u64,
    pub generation: u64,
    pub page: u64,
}

/// The `pages` pages of one generation of one file, from page `first`.
pub fn write(file: u64, generation: u64, first: u64, pages: usize) -> Vec<u8> {
    let mut bytes = vec![0; pages * PAGE];
    for (index, page) in bytes.chunks_exact_mut(PAGE).enumerate() {
        let label = Label { file, generation, page: first + index as u64 };
        let (header, body) = page.split_at_mut(HEADER);
        fill_body(&label, body);
        for (field, value) in [MAGIC, file, generation, label.page, checksum(&label, body)].into_iter().enumerate() {
            header[field * 8..field * 8 + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

/// Reads one page.
///
/// # Errors
/// What is wrong with it: no page of ours, or bytes of two pages mixed.
pub fn read(page: &[u8]) -> Result<Label, String> {
    let field = |index: usize| {
        let bytes = page[index * 8..index * 8 + 8].try_into().expect("eight bytes");
        u64::from_le_bytes(bytes)
    };
    if page.iter().all(|byte| *byte == 0) {
        return Err("a page of zeros".to_owned());
    }
    if field(0) != MAGIC {
        return Err(format!("not a page: it starts with {:02x?}", &page[..16]));
    }
    let label = Label { file: field(1), generation: field(2), page: field(3) };
    let mut body = [0; PAGE - HEADER];
    fill_body(&label, &mut body);
    if page[HEADER..] != body || field(4) != checksum(&label, &body) {
        let at = page[HEADER..].iter().zip(&body).position(|(a, b)| a != b).map_or(32, |at| at + HEADER);
        return Err(format!("a mixed page: it says {label:?} and is something else from byte {at}"));
    }
    Ok(label)
}

fn fill_body(label: &Label, body: &mut [u8]) {
    let mut state = mix(label.file ^ mix(label.generation ^ mix(label.page)));
    for word in body.chunks_exact_mut(8) {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        word.copy_from_slice(&state.to_le_bytes());
    }
}

fn checksum(label: &Label, body: &[u8]) -> u64 {
    let mut sum = mix(label.file ^ label.generation.rotate_left(20) ^ label.page.rotate_left(40));
    for word in body.chunks_exact(8) {
        sum = (sum.rotate_left(5) ^ u64::from_le_bytes(word.try_into().expect("eight bytes"))).wrapping_mul(MAGIC | 1);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_knows_itself_and_every_damage() {
        let pages = write(3, 9, 5, 2);
        assert_eq!(read(&pages[..PAGE]), Ok(Label { file: 3, generation: 9, page: 5 }));
        assert_eq!(read(&pages[PAGE..]), Ok(Label { file: 3, generation: 9, page: 6 }));
        for at in [0, 9, 17, 25, 33, 40, 4095] {
            let mut damaged = pages[..PAGE].to_vec();
            damaged[at] ^= 1;
            assert!(read(&damaged).is_err(), "byte {at}");
        }
        let mixed = [&pages[..2048], &write(3, 10, 5, 1)[2048..]].concat();
        assert!(read(&mixed).is_err_and(|error| error.contains("mixed")));
        assert!(read(&[0; PAGE]).is_err());
    }
}
