# SPDX-License-Identifier: Apache-2.0
#
# Builds for aarch64 on a machine of another architecture, with the compiler of Debian's package
# g++-aarch64-linux-gnu, and has ctest run the native tests under qemu-user where that is installed.
#
# The interpreter and its headers stay the building machine's. What pyconfig.h says of an x86-64 machine
# is true of aarch64 as far as the module can tell. So this shows that the module compiles and links; a
# module to use is built on aarch64.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_ASM_COMPILER aarch64-linux-gnu-gcc)

find_program(QEMU_AARCH64 NAMES qemu-aarch64 qemu-aarch64-static)
if(QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${QEMU_AARCH64};-L;/usr/aarch64-linux-gnu")
endif()
