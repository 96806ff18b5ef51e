#!/bin/sh
# Passwords go from secrets into the files that libpq and boto3 read: not into arguments, nor into an address.
set -eu
umask 077
printf '*:*:mlflow:mlflow:%s\n' "$(cat /run/secrets/postgres_mlflow)" >"$PGPASSFILE"
printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' \
  "$(cat /run/secrets/s3_key_id)" "$(cat /run/secrets/s3_secret_key)" >"$AWS_SHARED_CREDENTIALS_FILE"
exec mlflow server --host 0.0.0.0 --port 5000 --workers 4 \
  --backend-store-uri postgresql+psycopg2://mlflow@postgres:5432/mlflow \
  --artifacts-destination s3://mlflow --serve-artifacts
