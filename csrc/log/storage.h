// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pig {

/// What a run file begins with.
constexpr uint8_t kFileMagic[] = {0x89, 'G', 'P', 'U', 'R', 'U', 'N', '\n'};

/// What can go wrong beside what an errno says.
constexpr int kDescriptorLost = -1;
constexpr int kFileShortened = -2;
/// Says what an error of a storage means, be it an errno or one of those above.
std::string storage_error_text(int error);

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

  /// What a small file of the kernel says; empty where it can't be read.
  template <size_t N>
  char* read(char (&text)[N]) {
    struct stat status;
    const ssize_t count = is_ours(status) ? pread(number_, text, N - 1, 0) : ssize_t{0};
    text[count > 0 ? count : 0] = '\0';
    return text;
  }

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

/// Where a run log is kept. Not synchronised.
class Storage {
 public:
  virtual ~Storage() = default;

  /// Writes all of it, or returns an error.
  virtual int write(uint64_t offset, const void* data, size_t bytes) = 0;

  /// Whether what was written is still there: 0 or an error, after which nothing is written any
  /// more. To be asked before each group of writes.
  virtual int check() { return 0; }

  /// Takes the file away, of a recording that could not begin.
  virtual void discard() {}

  /// Lets go of the file: where the recording has stopped, and in a forked child, whose parent it
  /// belongs to.
  virtual void abandon() {}
};

/// A file, written with pwrite: the page cache keeps what was written when the process is killed,
/// and a full disk is an error code (under a writable mmap it would be a SIGBUS).
class FileStorage : public Storage {
 public:
  /// Throws std::system_error. The file is new, and locked (flock) against a second recorder where
  /// the file system can do that. With `overwrite` it takes the name of a run file that is there,
  /// and of nothing else: that is EEXIST.
  FileStorage(const std::string& path, bool overwrite);
  int write(uint64_t offset, const void* data, size_t bytes) override;
  int check() override;
  void discard() override;
  void abandon() override { descriptor_.close(); }

 private:
  std::string path_;
  HighDescriptor descriptor_;
  uint64_t end_ = 0;  ///< of what was written
  int error_ = 0;     ///< what `check` found; for good
};

/// The same bytes in memory, in pages that are made when they are first written.
class MemoryStorage : public Storage {
 public:
  /// `keeps_descriptor`: until it is abandoned it occupies one, so that one is free then, as after
  /// a file: whoever reads the log has to open files first, those of Python modules.
  explicit MemoryStorage(bool keeps_descriptor = false);
  ~MemoryStorage() override;

  /// In the pages of all of them. From any thread.
  static int64_t held_bytes();

  int write(uint64_t offset, const void* data, size_t bytes) override;
  uint64_t size() const { return size_; }
  void read(void* out) const;  ///< all `size()` bytes
  void abandon() override { spare_.close(); }

 private:
  static constexpr size_t kPage = 16384;
  std::vector<std::unique_ptr<uint8_t[]>> pages_;
  uint64_t size_ = 0;
  HighDescriptor spare_;
};

}  // namespace pig
