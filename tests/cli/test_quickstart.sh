#!/bin/sh
# the quickstart's server outlives its terminal, and the next quickstart finds and ends it though its program was built anew
. tests/cli/lib.sh
mkdir "$scratch/build" "$scratch/data"
cp "$cairn" "$scratch/build/cairn"

# The functions as quickstart.sh has them, with names that do not matter in a folder of their own.
cat >"$scratch/part.sh" <<END
set -eu
cd "$scratch"
dir=$scratch/data log=$scratch/data/server.log token=$token cairn=build/cairn server=""
fail() { echo "fail: \$*" >&2; exit 1; }
$(sed -n '/^start_server()/,/^}/p; /^stop_old_server()/,/^}/p' quickstart.sh)
"\$@"
END
run="bash $scratch/part.sh"

script -qec "$run start_server 0" /dev/null >"$scratch/out" 2>&1 || die "the server did not start: $(cat "$scratch/out")"
server=$(cat "$scratch/data/server.pid")
CAIRN_URL=$(sed -n 's/^listening on //p' "$scratch/data/server.log")
export CAIRN_URL
sleep 0.2 # a hangup would have come by now
expect_exit 0 "$cairn" status

# Built anew: another file has its name.
cp "$cairn" "$scratch/build/new"
mv "$scratch/build/new" "$scratch/build/cairn"
expect_exit 0 $run stop_old_server
expect_exit 1 "$cairn" status
[ ! -e "$scratch/data/server.pid" ] || die "the file of its id is still there"
server=""

# No server, or an id that is somebody else's by now: nobody is ended.
expect_exit 0 $run stop_old_server
sleep 60 &
other=$!
echo "$other" >"$scratch/data/server.pid"
expect_exit 0 $run stop_old_server
kill "$other" || die "another process was ended"
