#!/bin/sh
# Puts PostgreSQL, PgBouncer and Redis into the folder $1 as bin/postgres, bin/initdb, bin/pgbouncer and bin/redis-server:
# links to those that the machine has, else scripts that start what Debian's packages hold, unpacked here. Nothing is
# installed into the system, where Debian would start them as services.
set -eu
mkdir -p "$1/bin"
folder=$(cd "$1" && pwd)

unpack() { # the package $1, and what it needs and the machine lacks
    mkdir "$folder/packages"
    cd "$folder/packages"
    missing=$(apt-get install --simulate --no-install-recommends "$1" | awk '$1 == "Inst" {print $2}')
    printf '%s\n' "$1" $missing | sort -u | xargs apt-get download -qq
    for package in *.deb; do
        dpkg-deb --extract "$package" "$folder/unpacked"
    done
    cd "$folder"
    rm -r packages
}

offer() { # the program $1 by the name of its file
    if [ "${1#"$folder"}" = "$1" ]; then
        ln -sf "$1" "$folder/bin/${1##*/}"
        return
    fi
    # relative to the script, so that the folder may be copied
    cat >"$folder/bin/${1##*/}" <<END
#!/bin/sh
folder=\$(cd "\$(dirname "\$0")/.." && pwd)
for each in "\$folder"/unpacked/usr/lib/*-linux-*; do
    LD_LIBRARY_PATH="\$each\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
done
export LD_LIBRARY_PATH
exec "\$folder/${1#"$folder"/}" "\$@"
END
    chmod +x "$folder/bin/${1##*/}"
}

newest_postgres() {
    command -v postgres || find "$@" -path '*/postgresql/*/bin/postgres' 2>/dev/null | sort -V | tail -n 1
}

rm -rf "$folder/unpacked" "$folder/packages"
postgres=$(newest_postgres /usr/lib)
pooler=$(command -v pgbouncer || true)
redis=$(command -v redis-server || true)
if [ -z "$postgres" ] || [ -z "$pooler" ] || [ -z "$redis" ]; then
    [ "$(id -u)" != 0 ] || apt-get update -qq
fi
if [ -z "$postgres" ]; then
    unpack "$(apt-cache depends postgresql | awk '/Depends: postgresql-[0-9]/ {print $2; exit}')"
    postgres=$(find "$folder/unpacked" -path '*/postgresql/*/bin/postgres')
fi
if [ -z "$pooler" ]; then
    unpack pgbouncer
    pooler=$folder/unpacked/usr/sbin/pgbouncer
fi
if [ -z "$redis" ]; then
    unpack redis-server
    redis=$folder/unpacked/usr/bin/redis-server
fi
postgres=$(readlink -f "$postgres")
offer "$postgres"
offer "${postgres%/*}/initdb"
offer "$pooler"
offer "$redis"
"$folder/bin/postgres" --version
"$folder/bin/pgbouncer" --version
"$folder/bin/redis-server" --version
