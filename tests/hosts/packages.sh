#!/bin/sh
# Installs what the SSH test hosts need, or explains why they will be skipped. Always succeeds: the tests say the rest.
# SSH_TEST_HOSTS=install installs also where a service manager runs, which starts an SSH server on this machine.
set -eu
PATH=$PATH:/usr/sbin:/sbin

needed=
for pair in sshd=openssh-server ssh=openssh-client ip=iproute2 unshare=util-linux python3=python3; do
  command -v "${pair%%=*}" >/dev/null || needed="$needed ${pair#*=}"
done
# Login shells that are tried; without them only their own tests are skipped.
shells=
for pair in csh=tcsh fish=fish; do
  command -v "${pair%%=*}" >/dev/null || shells="$shells ${pair#*=}"
done
if [ -z "$needed$shells" ]; then
  [ "$(id -u)" = 0 ] || echo "Tests with SSH hosts are skipped: they need root." >&2
  exit 0
fi

what="Tests with SSH hosts"
[ -n "$needed" ] || what="Tests with other login shells"

explain() {
  echo "$what are skipped: $1. To run them, as root: apt-get install$needed$shells" >&2
  exit 0
}

[ "$(uname -s)" = Linux ] || explain "they need Linux"
[ "$(id -u)" = 0 ] || explain "they need root"
command -v apt-get >/dev/null || explain "packages are missing, and there is no apt-get"
if [ -d /run/systemd/system ] && [ -z "${CI:-}" ] && [ "${SSH_TEST_HOSTS:-}" != install ]; then
  explain "installing openssh-server here would also start it (SSH_TEST_HOSTS=install does so)"
fi

echo "Installing what the SSH test hosts need:$needed$shells ..."
install() {
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $needed $shells >"$log" 2>&1
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The list of packages may be absent or old; fetching it anew takes longer than the packages.
if ! install && ! { apt-get update -q >"$log" 2>&1 && install; }; then
  tail -n 5 "$log" >&2
  explain "their packages cannot be installed"
fi
