//! Preprocessed pictures compared with those of transformers, and files that must be refused.

use std::io::Cursor;

use image::{DynamicImage, ImageFormat};

use super::*;
use crate::testdata;

const CLIP_MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const CLIP_STD: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];

const TILES_OF_16: Sizing = Sizing::Tiles { side: 16, least: 1, most: 4 };
const MULTIPLES_OR_TILES: Sizing =
    Sizing::MultiplesOrTiles { of: 8, min_pixels: 2 * 64, max_pixels: 4 * 64, least: 2, most: 4 };
const ENLARGED_8: Sizing = Sizing::Multiples { of: 8, min_pixels: 2 * 64, max_pixels: 12 * 64, enlarges: true };
const LARGEST_12: Sizing = Sizing::Largest { of: 12, max_pixels: 12 * 12 * 12 };
const WITHIN_96: Sizing = Sizing::Within { side: 96, of: 16, max_pixels: 1 << 20 };
const WITHIN_48: Sizing = Sizing::Within { side: 48, of: 8, max_pixels: 1 << 20 };

fn decode(bytes: &[u8]) -> Picture {
    Picture::decode(bytes, DecodeLimits::default()).unwrap()
}

fn golden(name: &str) -> Picture {
    decode(&testdata::bytes(&format!("vision/{name}.png")))
}

fn multiples(of: usize) -> Sizing {
    Sizing::Multiples { of, min_pixels: 1024, max_pixels: 1 << 20, enlarges: false }
}

/// The models and their preprocessing.
fn processors() -> [(&'static str, Preparation); 11] {
    let half = [0.5; 3];
    let of = |sizing, filter, mean, std| Preparation { sizing, filter, mean, std };
    [
        ("gemma3", of(Sizing::Square { side: 64 }, Filter::Bilinear, half, half)),
        ("gemma4", of(LARGEST_12, Filter::Bicubic, half, half)),
        ("gemma4e", of(LARGEST_12, Filter::Bicubic, half, half)),
        ("glm4v", of(ENLARGED_8, Filter::Bicubic, CLIP_MEAN, CLIP_STD)),
        ("internvl", of(TILES_OF_16, Filter::Bicubic, IMAGENET_MEAN, IMAGENET_STD)),
        ("lfm2vl", of(MULTIPLES_OR_TILES, Filter::Bilinear, half, half)),
        ("mistral3", of(WITHIN_96, Filter::Bicubic, CLIP_MEAN, CLIP_STD)),
        ("pixtral", of(WITHIN_48, Filter::Bicubic, CLIP_MEAN, CLIP_STD)),
        ("qwen25vl", of(multiples(28), Filter::Bicubic, CLIP_MEAN, CLIP_STD)),
        ("qwen3vl", of(multiples(16), Filter::Bicubic, half, half)),
        ("smolvlm", of(Sizing::Twice { longest: 36, side: 18, kept: 16 }, Filter::Lanczos, half, half)),
    ]
}

/// Returns a picture of the parts below each other, on black.
fn below_each_other(parts: &[Pixels]) -> Pixels {
    let width = parts.iter().map(|part| part.width).max().unwrap();
    let padding = |part: &Pixels| vec![0; (width - part.width) * CHANNELS];
    let row = |part: &Pixels, row: &[u8]| [row, &padding(part)].concat();
    let rows =
        |part: &Pixels| part.rgb.chunks(part.width * CHANNELS).map(|of| row(part, of)).collect::<Vec<_>>().concat();
    let rgb = parts.iter().map(rows).collect::<Vec<_>>().concat();
    Pixels { width, height: parts.iter().map(|part| part.height).sum(), rgb }
}

/// Returns the size of a picture that becomes one part.
fn size(sizing: Sizing, [width, height]: [usize; 2]) -> Result<[usize; 2]> {
    let parts = sizing.parts(width, height)?;
    assert_eq!((parts.tiles, parts.whole), ([1, 1], None));
    Ok(parts.tile)
}

#[test]
fn pictures_are_resized_as_by_the_processors() {
    for (name, preparation) in processors() {
        let picture = golden(&format!("{name}_2"));
        let expected = golden(&format!("{name}_2_resized"));
        assert_eq!(below_each_other(&preparation.resized(&picture).unwrap()), expected.pixels, "{name}");
    }
}

/// Returns the values of transformers, `[part][channel][row][column]`. Qwen and GLM store patches in squares of 2 x 2,
/// and each picture twice.
fn pixel_values(name: &str, picture: usize, [width, height]: [usize; 2]) -> Vec<f32> {
    let z = testdata::npz(&format!("vision/{name}"));
    let key = format!("pixel_values_{picture}");
    let (values, shape) = (z.f32(&key), z.shape(&key).to_vec());
    if shape.len() != 2 {
        return values;
    }
    let side = (shape[1] as f64 / 6.0).sqrt() as usize;
    let blocks = width / side / 2;
    let mut planes = vec![f32::NAN; CHANNELS * width * height];
    for (index, patch) in values.chunks(shape[1]).enumerate() {
        let (block, within) = (index / 4, index % 4);
        let [row, column] = [block / blocks * 2 + within / 2, block % blocks * 2 + within % 2];
        for (at, &value) in patch.iter().enumerate() {
            let (channel, frame, y, x) = (at / side / side / 2, at / side / side % 2, at / side % side, at % side);
            let place = (channel * height + row * side + y) * width + column * side + x;
            assert!(frame == 0 || planes[place] == value);
            planes[place] = value;
        }
    }
    planes
}

#[test]
fn numbers_are_those_of_the_processors() {
    for (name, preparation) in processors() {
        for picture in [1, 2] {
            let prepared = preparation.prepare(&golden(&format!("{name}_{picture}"))).unwrap();
            let expected = pixel_values(name, picture, [prepared[0].width, prepared[0].height]);
            let values = prepared.into_iter().map(|part| part.values).collect::<Vec<_>>().concat();
            assert_eq!(values.len(), expected.len());
            let errors = values.iter().zip(&expected).map(|(got, expected)| (got - expected).abs());
            let worst = errors.fold(0.0, f32::max);
            assert!(worst < 1e-5, "{name}_{picture}: {worst:.1e}");
        }
    }
}

#[test]
fn sizes_stay_within_their_bounds() {
    let sizing = Sizing::Multiples { of: 28, min_pixels: 3136, max_pixels: 1_003_520, enlarges: false };
    for (sides, expected) in [
        ([1920, 1080], Ok([1316, 728])),
        ([14, 14], Ok([56, 56])),
        ([56, 42], Ok([56, 56])),
        ([56, 70], Ok([56, 56])),
        ([200, 1], Ok([812, 28])),
        ([201, 1], Err(())),
    ] {
        assert_eq!(size(sizing, sides).map_err(|_| ()), expected, "{sides:?}");
    }
}

/// The expected sizes are those of GLM-4V's `smart_resize`, whose areas are those of two frames.
#[test]
fn small_pictures_are_enlarged_first() {
    let sizing = Sizing::Multiples { of: 28, min_pixels: 6272, max_pixels: 2048 * 784, enlarges: true };
    for (sides, expected) in [
        ([1920, 1080], [1680, 924]),
        ([10, 10], [84, 84]),
        ([1, 1], [84, 84]),
        ([27, 300], [28, 308]),
        ([300, 20], [420, 28]),
        ([2000, 11], [5096, 28]),
        ([100, 100], [112, 112]),
        ([56, 42], [112, 84]),
        ([3000, 3000], [1260, 1260]),
    ] {
        assert_eq!(size(sizing, sides).unwrap(), expected, "{sides:?}");
    }
    assert!(size(sizing, [202, 1]).is_err());
}

/// The longer side is bounded first, and then the area.
#[test]
fn pictures_stay_within_a_square_and_an_area() {
    let sizing = Sizing::Within { side: 1540, of: 28, max_pixels: 2048 * 28 * 28 };
    for (sides, expected) in [
        ([1920, 1080], [1540, 868]),
        ([1080, 1920], [868, 1540]),
        ([1540, 1000], [1540, 1008]),
        ([56, 57], [56, 84]),
        ([1, 1], [28, 28]),
        ([3000, 100], [1540, 56]),
        ([100_000, 1], [1540, 28]),
        ([1540, 1540], [1260, 1260]),
        ([4000, 3900], [1260, 1232]),
    ] {
        assert_eq!(size(sizing, sides).unwrap(), expected, "{sides:?}");
        assert!(expected[0] * expected[1] <= sizing.most_pixels());
    }
    assert_eq!(WITHIN_96.most_pixels(), 96 * 96);
}

/// Sizes of pictures, and those they are resized to.
const LARGEST_SIZES: [([usize; 2], [usize; 2]); 11] = [
    ([1920, 1080], [1056, 576]),
    ([1, 1], [768, 768]),
    ([48, 48], [768, 768]),
    ([3000, 10], [13440, 48]),
    ([10, 3000], [48, 13440]),
    ([1000, 2], [13440, 48]),
    ([100000, 1], [13440, 48]),
    ([1, 283], [48, 13440]),
    ([804, 803], [768, 768]),
    ([281, 1], [13440, 48]),
    ([640, 480], [912, 672]),
];

/// The expected sizes are those of transformers' `get_aspect_ratio_preserving_size`.
#[test]
fn pictures_are_as_large_as_they_may_be() {
    let sizing = Sizing::Largest { of: 48, max_pixels: 280 * 48 * 48 };
    for (sides, expected) in LARGEST_SIZES {
        assert_eq!(size(sizing, sides).unwrap(), expected, "{sides:?}");
        assert!(expected[0] * expected[1] <= sizing.most_pixels());
    }
}

/// Sizes of pictures, and the columns and rows of their tiles of 448 x 448 pixels.
const TILED_SIZES: [([usize; 2], [usize; 2]); 12] = [
    ([448, 448], [1, 1]),
    ([1920, 1080], [4, 2]),
    ([1080, 1920], [2, 4]),
    ([640, 480], [4, 3]),
    ([100, 100], [1, 1]),
    ([900, 900], [2, 2]),
    ([2000, 2000], [3, 3]),
    ([3000, 10], [12, 1]),
    ([10, 3000], [1, 12]),
    ([800, 400], [2, 1]),
    ([2240, 448], [5, 1]),
    ([1, 1], [1, 1]),
];

/// The expected grids are those of transformers' `get_optimal_tiled_canvas`.
#[test]
fn pictures_are_cut_into_tiles_of_their_proportions() {
    let sizing = Sizing::Tiles { side: 448, least: 1, most: 12 };
    for (sides, tiles) in TILED_SIZES {
        let whole = (tiles != [1, 1]).then_some([448; 2]);
        let expected = Parts { tiles, tile: [448; 2], first: None, pitch: [448; 2], whole };
        assert_eq!(sizing.parts(sides[0], sides[1]).unwrap(), expected, "{sides:?}");
    }
}

/// Sizes of pictures, and the first sides and the tiles of those with a longest side of 2048 and tiles of 512 pixels.
const TWICE_SIZES: [([usize; 2], [usize; 2], [usize; 2]); 11] = [
    ([1920, 1080], [2048, 1152], [4, 3]),
    ([1080, 1920], [1152, 2048], [3, 4]),
    ([640, 480], [2048, 1536], [4, 3]),
    ([100, 100], [2048, 2048], [4, 4]),
    ([2048, 2048], [2048, 2048], [4, 4]),
    ([3000, 10], [2048, 6], [4, 1]),
    ([10, 3000], [6, 2048], [1, 4]),
    ([1, 1], [2048, 2048], [4, 4]),
    ([800, 401], [2048, 1026], [4, 3]),
    ([2049, 513], [2048, 512], [4, 1]),
    ([333, 1000], [682, 2048], [2, 4]),
];

/// The expected sides and tiles are those of transformers' `SmolVLMImageProcessorPil`.
#[test]
fn pictures_have_a_longest_side_before_they_become_tiles() {
    let sizing = Sizing::Twice { longest: 2048, side: 512, kept: 512 };
    for (sides, first, tiles) in TWICE_SIZES {
        let parts = sizing.parts(sides[0], sides[1]).unwrap();
        assert_eq!((parts.first, parts.tiles, parts.whole), (Some(first), tiles, Some([512; 2])), "{sides:?}");
    }
    let one = Sizing::Twice { longest: 384, side: 384, kept: 378 }.parts(640, 480).unwrap();
    assert_eq!(one, Parts { tiles: [1, 1], tile: [378; 2], first: Some([384, 288]), pitch: [384; 2], whole: None });
}

/// Sizes of pictures, and the sizes of their parts, with the columns and rows of tiles of 512 x 512 pixels.
const TILED_IF_LARGE: [([usize; 2], [usize; 2], [usize; 2]); 18] = [
    ([1920, 1080], [4, 2], [672, 384]),
    ([1080, 1920], [2, 4], [384, 672]),
    ([640, 480], [1, 1], [576, 416]),
    ([512, 512], [1, 1], [512, 512]),
    ([100, 100], [1, 1], [256, 256]),
    ([1, 1], [1, 1], [256, 256]),
    ([724, 724], [2, 2], [512, 512]),
    ([737, 720], [1, 1], [512, 480]),
    ([736, 720], [1, 1], [512, 480]),
    ([900, 600], [3, 2], [608, 416]),
    ([2000, 2000], [3, 3], [512, 512]),
    ([4000, 500], [8, 1], [1440, 160]),
    ([256, 1], [1, 1], [4096, 32]),
    ([3, 700], [1, 1], [32, 3936]),
    ([1000, 32], [1, 1], [1440, 64]),
    ([5000, 10], [1, 1], [4992, 32]),
    ([3200, 800], [4, 1], [1024, 256]),
    ([2240, 448], [5, 1], [1120, 224]),
];

/// The expected sizes are those of transformers' `Lfm2VlImageProcessor`.
#[test]
fn large_pictures_become_tiles() {
    let sizing = Sizing::MultiplesOrTiles { of: 32, min_pixels: 65_536, max_pixels: 262_144, least: 2, most: 10 };
    for (sides, tiles, last) in TILED_IF_LARGE {
        let parts = sizing.parts(sides[0], sides[1]).unwrap();
        assert_eq!((parts.tiles, parts.sizes().last()), (tiles, Some(last)), "{sides:?}");
        assert!(parts.sizes().all(|[width, height]| width * height <= sizing.most_pixels()), "{sides:?}");
    }
    let error = sizing.parts(30_000, 1).unwrap_err().to_string();
    assert!(error.contains("at most 256 times the shorter"), "{error}");
}

/// Returns a picture in this format: red on the left half, blue on the right.
fn encoded(format: ImageFormat) -> Vec<u8> {
    let image = image::RgbImage::from_fn(16, 8, |x, _| image::Rgb(if x < 8 { [255, 0, 0] } else { [0, 0, 255] }));
    let mut bytes = Cursor::new(Vec::new());
    DynamicImage::from(image).write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

#[test]
fn formats_are_decoded() {
    for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::WebP, ImageFormat::Gif] {
        let picture = decode(&encoded(format));
        assert_eq!((picture.width(), picture.height()), (16, 8), "{format:?}");
        let near = |pixel: &[u8], colour: [u8; 3]| pixel.iter().zip(colour).all(|(&a, b)| a.abs_diff(b) < 12);
        assert!(near(&picture.rgb()[..3], [255, 0, 0]) && near(&picture.rgb()[45..48], [0, 0, 255]), "{format:?}");
    }
}

#[test]
fn transparent_pixels_lie_on_white() {
    let image = image::RgbaImage::from_raw(3, 1, vec![9, 8, 7, 0, 100, 50, 0, 51, 9, 8, 7, 255]).unwrap();
    let mut bytes = Cursor::new(Vec::new());
    DynamicImage::from(image).write_to(&mut bytes, ImageFormat::Png).unwrap();
    assert_eq!(decode(&bytes.into_inner()).rgb(), [255, 255, 255, 224, 214, 204, 9, 8, 7]);
}

#[test]
fn deep_and_grey_pictures_become_rgb() {
    let deep = image::ImageBuffer::<image::Rgb<u16>, _>::from_raw(1, 1, vec![65535u16, 257 * 100, 0]).unwrap();
    for (image, expected) in [
        (DynamicImage::from(deep), [255, 100, 0]),
        (DynamicImage::from(image::GrayImage::from_raw(1, 1, vec![77]).unwrap()), [77, 77, 77]),
    ] {
        let mut bytes = Cursor::new(Vec::new());
        image.write_to(&mut bytes, ImageFormat::Png).unwrap();
        assert_eq!(decode(&bytes.into_inner()).rgb(), expected);
    }
}

/// Returns the JPEG file with an EXIF segment that holds only this orientation.
fn with_orientation(jpeg: &[u8], orientation: u8) -> Vec<u8> {
    let tiff = [b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".as_slice(), &[orientation], &[0; 6]].concat();
    let length = 2 + 6 + tiff.len() as u16;
    let segment = [b"\xFF\xE1".as_slice(), &length.to_be_bytes(), b"Exif\0\0", &tiff].concat();
    [&jpeg[..2], &segment, &jpeg[2..]].concat()
}

#[test]
fn pictures_are_turned_as_their_files_say() {
    let jpeg = encoded(ImageFormat::Jpeg);
    let plain = decode(&jpeg);
    assert_eq!(decode(&with_orientation(&jpeg, 1)), plain);
    let mirrored = decode(&with_orientation(&jpeg, 2));
    assert_eq!(mirrored.rgb()[..3], plain.rgb()[45..48]);
    let turned = decode(&with_orientation(&jpeg, 6));
    assert_eq!((turned.width(), turned.height()), (8, 16));
    assert_eq!(turned.rgb()[..3], plain.rgb()[7 * 48..][..3]);
}

#[test]
fn bad_files_are_refused() {
    let png = encoded(ImageFormat::Png);
    // The header states 60,000 x 60,000 pixels and has a correct checksum.
    let mut bomb = png.clone();
    bomb[16..24].copy_from_slice(&[0, 0, 0xEA, 0x60, 0, 0, 0xEA, 0x60]);
    let crc = crc32(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&crc.to_be_bytes());
    let mut empty = png.clone();
    empty[16..20].fill(0);
    let crc = crc32(&empty[12..29]);
    empty[29..33].copy_from_slice(&crc.to_be_bytes());
    let cases: [(&[u8], &str); 7] = [
        (b"", "none of these formats"),
        (b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>", "none of these formats"),
        (b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0", "none of these formats"),
        (&png[..png.len() / 2], "cannot be decoded"),
        (&png[..20], "cannot be decoded"),
        (&bomb, "60000 x 60000"),
        (&empty, "image"),
    ];
    for (bytes, part) in cases {
        let error = Picture::decode(bytes, DecodeLimits::default()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let small = DecodeLimits { max_bytes: png.len() - 1, max_pixels: 128 };
    assert!(Picture::decode(&png, small).unwrap_err().to_string().contains("smaller picture"));
    let small = DecodeLimits { max_bytes: png.len(), max_pixels: 127 };
    assert!(Picture::decode(&png, small).unwrap_err().to_string().contains("1 to 127 pixels"));
    let enough = DecodeLimits { max_bytes: png.len(), max_pixels: 128 };
    assert_eq!(Picture::decode(&png, enough).unwrap().width(), 16);
}

/// Returns the checksum of a PNG chunk.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { 0xEDB8_8320 ^ (crc >> 1) } else { crc >> 1 };
    !bytes.iter().fold(!0u32, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc)))
}

#[test]
fn bytes_must_fit_their_size() {
    assert!(Picture::from_rgb(2, 2, vec![0; 11]).is_err());
    assert!(Picture::from_rgb(0, 2, Vec::new()).is_err());
    assert!(Picture::from_rgb(usize::MAX, 2, vec![0; 12]).is_err());
    assert_eq!(Picture::from_rgb(2, 2, vec![0; 12]).unwrap().height(), 2);
}
