#!/bin/sh
# Installs lavapipe, Mesa's software Vulkan driver, and Vulkan's loader with the system's package manager, unless
# they are installed. Needs root, or a sudo that asks for no password.
# Dawn needs Mesa 25. Where Debian has an older one, as Debian 12 does, Mesa comes from its backports: nothing else does.
set -eu
if ! command -v apt-get >/dev/null && ! command -v dnf >/dev/null && ! command -v pacman >/dev/null; then
  echo "apt-get, dnf and pacman are missing. Install Mesa's Vulkan drivers, 25 or later, and Vulkan's loader." >&2
  exit 1
fi
mesa=$(dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null || true)
mesa=${mesa:-0} # a package that was removed has an empty version
[ "${mesa%%.*}" -lt 25 ] || exit 0
[ "$(id -u)" = 0 ] || exec sudo -n sh "$0"
if command -v dnf >/dev/null; then
  exec dnf install -y mesa-vulkan-drivers vulkan-loader
elif command -v pacman >/dev/null; then
  exec pacman -S --needed --noconfirm vulkan-swrast vulkan-icd-loader
fi
echo "Installing lavapipe with apt-get."
export DEBIAN_FRONTEND=noninteractive
apt-get update
mesa=$(apt-cache policy mesa-vulkan-drivers | sed -n 's/^ *Candidate: //p')
from=
if [ "${mesa%%.*}" -lt 25 ]; then
  . /etc/os-release
  if [ "$ID" != debian ]; then
    echo "This release has Mesa $mesa, and Dawn needs 25 or later." >&2
    exit 1
  fi
  archive=$(apt-get indextargets --format '$(REPO_URI)' "Release: $VERSION_CODENAME" 'Component: main' 'Created-By: Packages' | head -n 1)
  list=/etc/apt/sources.list.d/lavapipe.list
  echo "Mesa $mesa is too old: $list adds Debian's backports, from which only Mesa is installed."
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $VERSION_CODENAME-backports main" >"$list"
  apt-get update
  from="-t $VERSION_CODENAME-backports libdrm2 libdrm-amdgpu1"
fi
apt-get install --no-install-recommends -y $from mesa-vulkan-drivers libvulkan1
