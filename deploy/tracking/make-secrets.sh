#!/bin/sh
# Passwords of 192 bits for compose.yaml, made once. Readable by others in the containers only: Docker mounts each file
# into those that name it, with its mode, and MLflow and rclone do not run as root there.
set -eu
cd "$(dirname "$0")"
mkdir -p -m 700 secrets
for name in postgres_mlflow s3_key_id s3_secret_key; do
  [ -s "secrets/$name" ] || { head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \n' >"secrets/$name"; chmod 644 "secrets/$name"; }
done
