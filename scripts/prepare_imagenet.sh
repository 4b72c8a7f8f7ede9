#!/usr/bin/env bash
# Unpacks the archives of ILSVRC 2012 (image-net.org) for data=imagenet, to ROOT/train/<wnid>/*.JPEG
# and ROOT/val/<wnid>/*.JPEG:
#
#   scripts/prepare_imagenet.sh ILSVRC2012_img_train.tar ILSVRC2012_img_val.tar \
#       ILSVRC2012_devkit_t12.tar.gz [data/imagenet]
#
# The development kit needs scipy. A text file may replace it and list the classes in lines such as
# "ILSVRC2012_val_00000293.JPEG n01440764". Unpacked classes are not unpacked again, so run an
# interrupted command again to resume it.
set -euo pipefail

fail() {
    echo "prepare_imagenet.sh: $1" >&2
    exit 2
}

(($# == 3 || $# == 4)) || fail "usage: scripts/prepare_imagenet.sh TRAIN.tar VAL.tar DEVKIT.tar.gz|CLASSES.txt [ROOT]"
train=$1 val=$2 key=$3 root=${4:-data/imagenet}
for file in "$train" "$val" "$key"; do
    [[ -r $file ]] || fail "there is no file '$file'; get the archives of ILSVRC 2012 from image-net.org."
done
if [[ -f .venv/bin/activate ]]; then
    # shellcheck disable=SC1091
    source .venv/bin/activate
fi
type -P python3 >/dev/null || fail "python3 is needed to sort the validation images."

members=$(tar -tf "$train" 2>/dev/null) || fail "'$train' is no tar archive, or not all of one."
mapfile -t classes < <(grep -oP '^(\./)?n\d{8}\.tar$' <<<"$members" || true)
((${#classes[@]})) || fail "'$train' holds no archives of classes (n01440764.tar, ...): is it ILSVRC2012_img_train.tar?"
mkdir -p "$root/train"
for member in "${classes[@]}"; do
    wnid=$(basename "$member" .tar)
    [[ -d $root/train/$wnid ]] && continue
    rm -rf "$root/.part"
    mkdir "$root/.part"
    tar -xOf "$train" --occurrence=1 "$member" | tar -xf - -C "$root/.part" || fail "$member in '$train' is damaged."
    mv "$root/.part" "$root/train/$wnid"
done

if [[ ! -d $root/val ]]; then
    rm -rf "$root/.part"
    mkdir "$root/.part"
    tar -xf "$val" -C "$root/.part" 2>/dev/null || fail "'$val' is no tar archive, or not all of one."
    python3 - "$key" "$root/.part" "$root/train" <<'PYTHON' || exit 2
import io
import sys
import tarfile
from pathlib import Path

key, images, train = map(Path, sys.argv[1:])


def fail(sentence):
    print(f"prepare_imagenet.sh: {sentence}", file=sys.stderr)
    sys.exit(2)


def of_devkit():
    """The class of every validation image, by file name."""
    try:
        from scipy.io import loadmat
    except ImportError:
        fail("reading the development kit needs scipy: pip install scipy, or give a text file of classes.")
    with tarfile.open(key) as archive:
        files = {Path(name).name: name for name in archive.getnames()}
        try:
            meta, truth = (archive.extractfile(files[name]).read() for name in ("meta.mat", "ILSVRC2012_validation_ground_truth.txt"))
        except KeyError as error:
            fail(f"'{key}' has no {error.args[0]}: is it ILSVRC2012_devkit_t12.tar.gz?")
    synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
    wnids = {int(each["ILSVRC2012_ID"]): str(each["WNID"]) for each in synsets}
    return {f"ILSVRC2012_val_{i:08d}.JPEG": wnids[int(number)] for i, number in enumerate(truth.split(), 1)}


def of_text():
    try:
        rows = [line.split() for line in key.read_text(encoding="utf-8").splitlines() if line.strip()]
        return {name.removesuffix(".JPEG") + ".JPEG": wnid for name, wnid in rows}
    except ValueError:
        fail(f"'{key}' is no list of classes; its lines are such as 'ILSVRC2012_val_00000293.JPEG n01440764'.")


classes = of_devkit() if tarfile.is_tarfile(key) else of_text()
found = {path.name: path for path in images.rglob("*.JPEG")}
known = {path.name for path in train.iterdir()}
if not found:
    fail("the validation archive holds no images (ILSVRC2012_val_00000001.JPEG, ...): is it ILSVRC2012_img_val.tar?")
if strange := sorted(found.keys() - classes.keys()):
    fail(f"'{key}' does not say of which class {strange[0]} is, nor of {len(strange) - 1} others.")
if missing := sorted(classes.keys() - found.keys()):
    fail(f"the validation archive lacks {missing[0]} and {len(missing) - 1} others.")
if strange := sorted(set(classes.values()) - known):
    fail(f"the training archive lacks the class {strange[0]}.")
for name, path in found.items():
    (images / classes[name]).mkdir(exist_ok=True)
    path.rename(images / classes[name] / name)
PYTHON
    mv "$root/.part" "$root/val"
fi
count() { find "$1" -name '*.JPEG' | wc -l; }
echo "$root: ${#classes[@]} classes, $(count "$root/train") training images (complete: 1281167), $(count "$root/val") validation images" \
    "(complete: 50000)"
