// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace pig {

/// Our file descriptor in a program that knows nothing of it.
///
/// To the program a descriptor is a mere number: daemons close all of them, and what is opened next
/// gets the same numbers. So this one is high, where no other file soon comes to lie, and can tell
/// whether it still leads to its file. Where it doesn't it is somebody else's, and not even closed.
class HighDescriptor {
 public:
  HighDescriptor() = default;
  /// Takes over an open descriptor; a negative one is none.
  explicit HighDescriptor(int low) : number_(low) {
    // Not higher: the kernel's table of descriptors is as long as the highest of them.
    constexpr int kFloors[] = {4000, 1000, 240, 60};
    for (const int floor : kFloors) {
      if (number_ < 0 || number_ >= floor) break;
      // Refused where the floor is above RLIMIT_NOFILE, or nothing above it is free.
      const int high = fcntl(number_, F_DUPFD_CLOEXEC, floor);
      if (high < 0) continue;
      ::close(std::exchange(number_, high));
      break;
    }
    if (number_ >= 0 && fstat(number_, &file_) != 0) close();
    if (number_ < 0) return;
    // Nobody can touch it. It keeps the inode, whose number would otherwise be given to another
    // file once the program has closed and deleted this one.
    page_ = mmap(nullptr, 1, PROT_NONE, MAP_SHARED, number_, 0);
    if (page_ == MAP_FAILED) page_ = nullptr;  // some file systems can't
  }
  ~HighDescriptor() { close(); }
  HighDescriptor(HighDescriptor&& other) noexcept
      : number_(std::exchange(other.number_, -1)),
        file_(other.file_),
        page_(std::exchange(other.page_, nullptr)) {}
  HighDescriptor& operator=(HighDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    std::swap(file_, other.file_);
    std::swap(page_, other.page_);
    return *this;
  }

  /// -1: there is none.
  int number() const { return number_; }

  /// Whether it leads to its file, of which `status` then tells. From then on there is none
  /// otherwise.
  bool is_ours(struct stat& status) {
    if (number_ >= 0 && fstat(number_, &status) == 0 && status.st_dev == file_.st_dev &&
        status.st_ino == file_.st_ino)
      return true;
    number_ = -1;
    return false;
  }

  void close() {
    struct stat status;
    // In this order: a fork in between must not close a descriptor that is somebody else's by then.
    if (is_ours(status)) ::close(std::exchange(number_, -1));
    if (page_ != nullptr) munmap(std::exchange(page_, nullptr), 1);
  }

 private:
  int number_ = -1;
  struct stat file_{};
  void* page_ = nullptr;
};

}  // namespace pig
