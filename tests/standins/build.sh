#!/bin/sh
# build.sh FOLDER [MISSING...]: builds the stand-ins libcuda.so.1 and libcufile.so.0 in FOLDER, without the functions
# that are named MISSING.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
shift
mkdir -p "$folder"
{
    echo "{ global: *; local: nothing_;"
    for name in "$@"; do echo "  $name;"; done
    echo "};"
} >"$folder/exports"
for pair in cuda:libcuda.so.1 cufile:libcufile.so.0; do
    library=$folder/${pair#*:}
    "${CC:-cc}" -O1 -g -Wall -Wextra -Werror -shared -fPIC -pthread -Wl,--version-script="$folder/exports" \
        -o "$library.$$" "$here/${pair%%:*}.c"
    # Whoever builds the same at the same time sees a whole one.
    mv "$library.$$" "$library"
done
