#!/usr/bin/env bash
# Binarises Google's preprocessed WMT'16 English-German text for data=wmt16_en_de:
#
#   scripts/prepare_wmt16.sh wmt16_en_de.tar.gz [data/wmt16_en_de]
#
# The archive is https://drive.google.com/uc?export=download&id=0B_bZck-ksdkpM25jRUN2X2UxMm8 (see
# fairseq's examples/scaling_nmt). As in Ott et al. (2018), both languages share one dictionary. The
# script needs fairseq. It does not change a prepared folder.
set -euo pipefail

fail() {
    echo "prepare_wmt16.sh: $1" >&2
    exit 2
}

(($# == 1 || $# == 2)) || fail "usage: scripts/prepare_wmt16.sh wmt16_en_de.tar.gz [ROOT]"
archive=$1 root=${2:-data/wmt16_en_de}
if [[ -d $root ]]; then
    [[ -f $root/dict.en.txt && -f $root/test.en-de.de.idx ]] || fail "$root is there but is not complete: remove it first."
    echo "$root is there already"
    exit 0
fi
[[ -r $archive ]] || fail "there is no file '$archive'; the head of this script says where to get it."
if [[ -f .venv/bin/activate ]]; then
    # shellcheck disable=SC1091
    source .venv/bin/activate
fi
type -P fairseq-preprocess >/dev/null || fail "fairseq is needed: pip install 'sgp-runner[fairseq]' torch==VERSION (of the installed torch), or make .venv/.fairseq in the clone."

part=$root.part
rm -rf "$part"
mkdir -p "$part/text"
tar -xf "$archive" -C "$part/text" 2>/dev/null || fail "'$archive' is no tar archive, or not all of one."
train=train.tok.clean.bpe.32000 valid=newstest2013.tok.bpe.32000 test=newstest2014.tok.bpe.32000
for name in "$train" "$valid" "$test"; do
    for language in en de; do
        [[ -f $part/text/$name.$language ]] || fail "'$archive' has no $name.$language: is it wmt16_en_de.tar.gz?"
    done
    lines=$(wc -l <"$part/text/$name.en") others=$(wc -l <"$part/text/$name.de")
    ((lines == others)) || fail "$name has $lines English and $others German lines; they should be as many."
done
fairseq-preprocess --source-lang en --target-lang de \
    --trainpref "$part/text/$train" --validpref "$part/text/$valid" --testpref "$part/text/$test" --destdir "$part/binarised" \
    --nwordssrc 32768 --nwordstgt 32768 --joined-dictionary --workers "$(nproc)" >"$part/log" 2>&1 ||
    fail "fairseq-preprocess failed; $part/log says why."
mv "$part/binarised" "$root"
rm -rf "$part"
echo "$root: binarised, with a dictionary of $(wc -l <"$root/dict.en.txt") words"
