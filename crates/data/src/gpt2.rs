//! GPT-2's byte-pair encoding. Radford et al., 2019.

use std::collections::HashMap;

use tokenizers::models::bpe::{BPE, Merges, Vocab};

use crate::DataError;

/// Tokens but for the one that ends a text.
const N_TOKENS: u32 = 50_256;

/// The model, from the ranks that `tiktoken-rs` carries: a token's rank is its id, and a merge has the rank of what it makes.
pub(crate) fn model() -> Result<BPE, DataError> {
    let ranks = tiktoken_rs::r50k_base_singleton();
    let bytes = |id| ranks.decode_bytes(&[id]).expect("every id below the end of text is a token");
    let tokens: Vec<Vec<u8>> = (0..N_TOKENS).map(bytes).collect();
    let ids: HashMap<&[u8], usize> = tokens.iter().enumerate().map(|(id, token)| (token.as_slice(), id)).collect();
    let stand_ins = stand_ins();
    let shown = |token: &[u8]| -> String { token.iter().map(|&byte| stand_ins[usize::from(byte)]).collect() };
    let vocab: Vocab = tokens.iter().map(|token| shown(token)).zip(0..).collect();
    let merged = tokens.iter().enumerate().filter(|(_, token)| token.len() > 1);
    let merges: Merges = merged
        .map(|(id, token)| {
            let (left, right) = halves(token, id, &ids);
            (shown(left), shown(right))
        })
        .collect();
    Ok(BPE::builder().vocab_and_merges(vocab, merges).build()?)
}

/// The two tokens that were merged into this one: what is left of it when all earlier merges are made.
fn halves<'a>(token: &'a [u8], id: usize, ids: &HashMap<&[u8], usize>) -> (&'a [u8], &'a [u8]) {
    let mut cuts: Vec<usize> = (0..=token.len()).collect();
    while cuts.len() > 3 {
        let rank = |i: &usize| ids.get(&token[cuts[*i - 1]..cuts[*i + 1]]).copied().filter(|&rank| rank < id);
        let first = (1..cuts.len() - 1).min_by_key(|i| rank(i).unwrap_or(usize::MAX)).expect("three cuts and more");
        cuts.remove(first);
    }
    token.split_at(cuts[1])
}

/// The character that stands for each byte: itself where it can be seen, else the next from U+0100 on.
fn stand_ins() -> Vec<char> {
    let mut next = 0x100..;
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let of = |byte| if visible(byte) { byte.into() } else { next.next().and_then(char::from_u32).expect("few") };
    (0..=255).map(of).collect()
}
