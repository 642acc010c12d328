#!/bin/sh
# Puts a Chromium at the path $1: a link to the one that is installed, which root installs from Debian's packages, or a
# script that starts what those packages hold, unpacked beside it.
set -eu
target=$1
folder=$(cd "$(dirname "$target")" && pwd)

if ! command -v chromium >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends chromium >/dev/null
fi
if found=$(command -v chromium); then
    ln -sf "$found" "$target"
    exit
fi

rm -rf "$folder/packages" "$folder/unpacked"
mkdir "$folder/packages"
cd "$folder/packages"
# what is missing of Chromium and all it needs
apt-get install --simulate --no-install-recommends chromium | awk '$1 == "Inst" {print $2}' | xargs apt-get download -qq
for package in *.deb; do
    dpkg-deb --extract "$package" "$folder/unpacked"
done
cd "$folder"
rm -r packages
libraries=$(find "$folder/unpacked" -name '*.so*' -printf '%h\n' | sort -u | paste -s -d :)
cat >"$target" <<END
#!/bin/sh
LD_LIBRARY_PATH="$libraries" exec "$folder/unpacked/usr/lib/chromium/chromium" "\$@"
END
chmod +x "$target"
"$target" --version
