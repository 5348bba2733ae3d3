#!/usr/bin/env bash
# first_contact.py, whose head says what it does, with the Python of $PYTHON or the path.
exec "${PYTHON:-python3}" "$(dirname "${BASH_SOURCE[0]}")/first_contact.py" "$@"
