// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "log/high_descriptor.h"

namespace pig {

/// What a run file begins with.
constexpr uint8_t kFileMagic[] = {0x89, 'G', 'P', 'U', 'R', 'U', 'N', '\n'};

/// What can go wrong beside what an errno says.
constexpr int kDescriptorLost = -1;
constexpr int kFileShortened = -2;
/// Says what an error of a storage means, be it an errno or one of those above.
std::string storage_error_text(int error);

/// Where a run log is kept. Not synchronised.
class Storage {
 public:
  virtual ~Storage() = default;

  /// Writes all of it, or returns an error.
  virtual int write(uint64_t offset, const void* data, size_t bytes) = 0;

  /// Whether what was written is still there: 0 or an error, after which nothing is written any
  /// more. To be asked before each group of writes.
  virtual int check() { return 0; }

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
  void abandon() override { descriptor_.close(); }

 private:
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
