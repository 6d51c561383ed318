//! All formats together: examples, the reference library, and files that were damaged at random.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use ::safetensors::{Dtype, SafeTensors, tensor::TensorView};
use proptest::prelude::*;

use super::cursor::ByteOrder;
use super::fixtures::{self, GgufWriter, ZipKind};
use super::*;

/// Refuses to be read outside of its size, and counts what is read.
struct Watched<'a> {
    data: &'a [u8],
    bytes_read: Cell<u64>,
}

impl Bytes for Watched<'_> {
    fn size(&self) -> u64 {
        self.data.len() as u64
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        assert!(offset + buf.len() as u64 <= self.size(), "read beyond the end: {} at {offset}", buf.len());
        self.bytes_read.set(self.bytes_read.get() + buf.len() as u64);
        self.data.read_exact_at(buf, offset)
    }
}

fn parse(data: &[u8]) -> Result<TensorMap, FormatError> {
    let watched = Watched { data, bytes_read: Cell::new(0) };
    let map = read(&watched)?;
    assert_eq!(map.size(), data.len() as u64);
    let mut previous_end = 0;
    for (index, tensor) in map.tensors().iter().enumerate() {
        let Range { start, end } = tensor.bytes;
        assert!(previous_end <= start && start <= end && end <= map.size(), "{tensor:?}");
        assert!(start >= end || end <= map.header().start || map.header().end <= start, "{tensor:?}");
        if start < end {
            assert_eq!((map.at(start), map.at(end - 1)), (Some(index), Some(index)));
        }
        previous_end = end;
    }
    assert!(map.header().end <= map.size());
    Ok(map)
}

fn layout(map: &TensorMap) -> Vec<(&str, &str, Range<u64>)> {
    map.tensors().iter().map(|tensor| (&*tensor.name, &*tensor.dtype, tensor.bytes.clone())).collect()
}

fn fault(data: &[u8]) -> (String, TensorFault) {
    match parse(data) {
        Err(FormatError::Tensor { name, fault, .. }) => (name.into(), fault),
        other => panic!("{other:?}"),
    }
}

#[test]
fn safetensors_tensors_are_sorted_and_absolute() {
    let header = r#"{"__metadata__":{"a":"b"},"y":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]},
        "x":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"more":[{}]},
        "odd":{"dtype":"Q9","shape":[1],"data_offsets":[20,25]}}   "#;
    let file = fixtures::safetensors(header, 30);
    let start = 8 + header.len() as u64;
    let map = parse(&file).unwrap();
    assert_eq!((map.format(), map.header()), (Format::Safetensors, 0..start));
    let expected =
        [("x", "U8", start..start + 4), ("y", "F16", start + 4..start + 16), ("odd", "Q9", start + 20..start + 25)];
    assert_eq!(layout(&map), expected);
    assert_eq!(*map.tensors()[1].shape, [2, 3]);
}

#[test]
fn safetensors_headers_that_lie_are_refused() {
    let one = |info: &str| fixtures::safetensors(&format!(r#"{{"t":{{{info}}}}}"#), 8);
    let tensor = |info: &str| fault(&one(info)).1;
    assert!(matches!(tensor(r#""dtype":"U8","shape":[9],"data_offsets":[0,9]"#), TensorFault::OutOfFile { .. }));
    assert!(matches!(tensor(r#""dtype":"U8","shape":[1],"data_offsets":[3,2]"#), TensorFault::OutOfFile { .. }));
    let max = u64::MAX;
    let huge = format!(r#""dtype":"?","shape":[1],"data_offsets":[0,{max}]"#);
    assert_eq!(tensor(&huge), TensorFault::Overflow);
    let many = format!(r#""dtype":"F32","shape":[{max},2],"data_offsets":[0,8]"#);
    assert_eq!(tensor(&many), TensorFault::Overflow);
    assert_eq!(
        tensor(r#""dtype":"F32","shape":[1],"data_offsets":[0,8]"#),
        TensorFault::WrongSize { bytes: 8, needed: 4 }
    );
    assert_eq!(tensor(r#""dtype":"F4","shape":[3],"data_offsets":[0,1]"#), TensorFault::BadShape);

    let info = r#"{"dtype":"U8","shape":[],"data_offsets":[0,1]}"#;
    let twice = fixtures::safetensors(&format!(r#"{{"t":{info},"u":{info}}}"#), 1);
    assert!(matches!(fault(&twice).1, TensorFault::Overlaps(_)));
    let empty = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let twice = fixtures::safetensors(&format!(r#"{{"t":{empty},"t":{empty}}}"#), 0);
    assert_eq!(fault(&twice), ("t".into(), TensorFault::NamedTwice));

    let deep = format!(r#"{{"__metadata__":{}"#, "[".repeat(200_000));
    let ranks = format!(r#"{{"t":{{"dtype":"U8","shape":[{}1]"#, "1,".repeat(1000));
    for header in ["{}x", "{ ", r#"{"t":1}"#, r#"{"t":{}}"#, r#"{"t":{"dtype":"U8","dtype":"U8"}}"#, &deep, &ranks] {
        assert!(matches!(parse(&fixtures::safetensors(header, 8)), Err(FormatError::Malformed { .. })));
    }
    let file = one(r#""dtype":"U8","shape":[8],"data_offsets":[0,8]"#);
    assert!(matches!(parse(&file[..20]), Err(FormatError::CutShort { .. })));
}

#[test]
fn a_header_that_is_not_json_is_not_read_to_its_claimed_end() {
    let mut file = fixtures::safetensors("{", 20 << 20);
    file[..8].copy_from_slice(&(20u64 << 20).to_le_bytes());
    let watched = Watched { data: &file, bytes_read: Cell::new(0) };
    assert!(read(&watched).is_err());
    assert!(watched.bytes_read.get() < 1 << 20, "{}", watched.bytes_read.get());
}

#[test]
fn a_header_of_ten_thousand_tensors_takes_little_memory() {
    let entry = |i: u64| {
        let (start, end) = (i * 8, i * 8 + 8);
        format!(r#""model.diffusion_model.{i}.weight":{{"dtype":"F16","shape":[2,2],"data_offsets":[{start},{end}]}}"#)
    };
    let entries: Vec<_> = (0..10_000).map(entry).collect();
    let map = parse(&fixtures::safetensors(&format!("{{{}}}", entries.join(",")), 80_000)).unwrap();
    assert_eq!(map.tensors().len(), 10_000);
    assert!(map.heap_bytes() < 2 << 20, "{}", map.heap_bytes());
}

#[test]
fn gguf_is_read_in_both_byte_orders_and_versions() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for (version, alignment) in [(2, 32), (3, 32), (3, 8), (3, 4096)] {
            let file = fixtures::gguf(order, version, alignment);
            let step = u64::from(alignment).max(128);
            let start = file.len() as u64 - 2 * step - 25;
            let map = parse(&file).unwrap();
            let expected = [
                ("token_embd.weight", "F32", start..start + 128),
                ("blk.0.ffn.weight", "Q4_0", start + step..start + step + 36),
                ("unknown", "type 999", start + 2 * step..start + 2 * step + 9),
                ("last", "F16", start + 2 * step + 9..start + 2 * step + 25),
            ];
            assert_eq!((map.format(), map.header(), layout(&map)), (Format::Gguf, 0..start, expected.to_vec()));
        }
    }
}

#[test]
fn gguf_headers_that_lie_are_refused() {
    let new = |tensors, pairs| GgufWriter::new(ByteOrder::Little, 3, tensors, pairs);
    let cut = |writer: GgufWriter| assert!(matches!(parse(&writer.bytes), Err(FormatError::CutShort { .. })));
    cut(new(u64::MAX, 0));
    cut(new(0, u64::MAX));
    let mut long_key = new(0, 1);
    long_key.u64(u64::MAX);
    long_key.bytes.extend([0; 64]);
    cut(long_key);
    for item in [0, 8, 9, 12] {
        let mut long_array = new(0, 1);
        long_array.string("a");
        long_array.u32(9);
        long_array.u32(item);
        long_array.u64(u64::MAX / 2);
        cut(long_array);
    }
    let malformed = |bytes: &[u8]| assert!(matches!(parse(bytes), Err(FormatError::Malformed { .. })));
    malformed(&GgufWriter::new(ByteOrder::Little, 4, 0, 0).bytes);
    for alignment in [0, 24] {
        let mut writer = new(0, 1);
        writer.pair_u32("general.alignment", alignment);
        malformed(&writer.bytes);
    }
    let mut nested = new(0, 1);
    nested.string("a");
    nested.u32(9);
    for _ in 0..1000 {
        nested.u32(9);
        nested.u64(1);
    }
    malformed(&nested.bytes);

    let tensor = |shape: &[u64], kind, offset| {
        let mut writer = new(1, 0);
        writer.tensor("t", shape, kind, offset);
        fault(&writer.finish(32, 64)).1
    };
    assert_eq!(tensor(&[33], 2, 0), TensorFault::BadShape);
    assert_eq!(tensor(&[1; 9], 0, 0), TensorFault::BadShape);
    assert_eq!(tensor(&[u64::MAX, 2], 0, 0), TensorFault::Overflow);
    assert_eq!(tensor(&[1], 0, u64::MAX), TensorFault::Overflow);
    assert!(matches!(tensor(&[17], 0, 0), TensorFault::OutOfFile { .. }));
    assert!(matches!(tensor(&[1], 999, 65), TensorFault::OutOfFile { .. }));
}

#[test]
fn torch_storages_are_found_by_their_local_headers() {
    let members: [(&str, &[u8]); 6] = [
        ("model/data.pkl", b"pickle"),
        ("model/byteorder", b"little"),
        ("model/data/0", &[1; 100]),
        ("model/data/10", &[2; 7]),
        ("model/data/0.txt", b"no storage"),
        ("model/.data/serialization_id", b"1"),
    ];
    for kind in [ZipKind::Plain, ZipKind::Wide] {
        let file = fixtures::zip(kind, &members);
        let map = parse(&file).unwrap();
        assert_eq!(map.format(), Format::TorchZip);
        let found: Vec<_> = layout(&map).into_iter().map(|(name, _, bytes)| (name, bytes)).collect();
        assert_eq!(found.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["model/data/0", "model/data/10"]);
        for ((_, bytes), (_, data)) in found.iter().zip(&members[2..]) {
            assert_eq!(file[bytes.start as usize..bytes.end as usize], **data);
        }
        assert!(map.header().end == map.size() && file[map.header().start as usize..].starts_with(b"PK\x01\x02"));
        let cut = parse(&file[..file.len() - 1]);
        assert!(matches!(cut, Err(FormatError::CutShort { .. })), "{cut:?}");
    }
}

#[test]
fn other_zips_and_compressed_storages_have_no_tensors() {
    let other = parse(&fixtures::zip(ZipKind::Plain, &[("a/data/0", b"x"), ("b/c/data.pkl", b"x")])).unwrap();
    assert_eq!(other.format(), Format::Opaque);
    let mut file = fixtures::zip(ZipKind::Plain, &[("a/data.pkl", b"x"), ("a/data/0", b"x")]);
    let entry = file.windows(4).rposition(|bytes| bytes == b"PK\x01\x02").unwrap();
    file[entry + 10] = 8;
    let map = parse(&file).unwrap();
    assert_eq!((map.format(), map.tensors().len()), (Format::TorchZip, 0));
}

#[test]
fn other_files_are_opaque() {
    for data in
        [&b""[..], b"{", b"GGUF", &[0; 100], b"\xff\xff\xff\xff\xff\xff\xff\xff{", b"\x80\x02}q\x00(X\x01\x00\x00"]
    {
        assert_eq!(parse(data).unwrap(), TensorMap::opaque(data.len() as u64));
    }
}

#[test]
fn a_failed_read_is_told_from_a_damaged_file() {
    struct Failing(Vec<u8>, u64);
    impl Bytes for Failing {
        fn size(&self) -> u64 {
            self.0.len() as u64
        }
        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
            let fails = offset + buf.len() as u64 > self.1;
            if fails {
                Err(io::ErrorKind::HostUnreachable.into())
            } else {
                self.0.as_slice().read_exact_at(buf, offset)
            }
        }
    }
    let zip = fixtures::zip(ZipKind::Plain, &[("a/data.pkl", b"x")]);
    for file in [fixtures::safetensors("{}", 8), fixtures::gguf(ByteOrder::Little, 3, 32), zip] {
        match read(&Failing(file, 9)) {
            Err(FormatError::Read { source, .. }) => assert_eq!(source.kind(), io::ErrorKind::HostUnreachable),
            other => panic!("{other:?}"),
        }
    }
}

fn dtype() -> impl Strategy<Value = (Dtype, usize)> {
    prop_oneof![
        Just((Dtype::U8, 1)),
        Just((Dtype::BF16, 2)),
        Just((Dtype::F32, 4)),
        Just((Dtype::F8_E4M3, 1)),
        Just((Dtype::I64, 8)),
    ]
}

prop_compose! {
    fn safetensors_file()(tensors in prop::collection::btree_map(
        "[a-zß\"\\\\.]{1,12}", (dtype(), prop::collection::vec(0usize..5, 0..4)), 0..20,
    )) -> Vec<u8> {
        let buffer = [0xda; 1024];
        let views: BTreeMap<String, TensorView<'_>> = tensors.into_iter().map(|(name, ((dtype, width), shape))| {
            let length = shape.iter().product::<usize>() * width;
            (name, TensorView::new(dtype, shape, &buffer[..length]).unwrap())
        }).collect();
        ::safetensors::serialize(views, None).unwrap()
    }
}

/// What the reference library says. Where it accepts a file, the parser must say the same.
fn check_against_reference(file: &[u8]) -> Result<(), TestCaseError> {
    let Ok((header_length, metadata)) = SafeTensors::read_metadata(file) else { return Ok(()) };
    let start = 8 + header_length as u64;
    let map = match parse(file) {
        Ok(map) => map,
        // The library takes the last of two tensors of one name.
        Err(FormatError::Tensor { fault: TensorFault::NamedTwice | TensorFault::Overlaps(_), .. }) => return Ok(()),
        Err(error) => return Err(TestCaseError::fail(format!("refused: {error}"))),
    };
    prop_assert_eq!(map.tensors().len(), metadata.tensors().len());
    for tensor in map.tensors() {
        let info = metadata.info(&tensor.name).unwrap();
        let (from, to) = info.data_offsets;
        prop_assert_eq!(&tensor.bytes, &(start + from as u64..start + to as u64));
        prop_assert_eq!(&*tensor.dtype, info.dtype.to_string());
        prop_assert!(tensor.shape.iter().copied().eq(info.shape.iter().map(|n| *n as u64)));
    }
    Ok(())
}

fn any_file() -> impl Strategy<Value = Vec<u8>> {
    let zip = |kind| fixtures::zip(kind, &[("m/data.pkl", b"p"), ("m/data/0", &[1; 99]), ("m/data/1", &[2; 5])]);
    prop_oneof![
        safetensors_file(),
        Just(fixtures::gguf(ByteOrder::Little, 3, 32)),
        Just(fixtures::gguf(ByteOrder::Big, 2, 64)),
        Just(zip(ZipKind::Plain)),
        Just(zip(ZipKind::Wide)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn safetensors_files_read_as_the_reference_library_reads_them(file in safetensors_file()) {
        prop_assert!(parse(&file).is_ok());
        check_against_reference(&file)?;
    }

    #[test]
    fn damaged_files_never_panic_and_what_is_accepted_is_sound(
        mut file in any_file(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        edge in prop::option::of((any::<prop::sample::Index>(), prop::sample::select(vec![0u8, 0x7f, 0x80, 0xff]))),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        for (at, byte) in flips {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some((at, byte)) = edge {
            let at = at.index(file.len());
            let end = file.len().min(at + 8);
            file[at..end].fill(byte);
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        let _ = parse(&file);
        check_against_reference(&file)?;
    }
}
