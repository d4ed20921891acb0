// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pig {

/// Where a run log is kept. Not synchronised.
class Storage {
 public:
  virtual ~Storage() = default;

  /// Writes all of it, or returns an errno.
  virtual int write(uint64_t offset, const void* data, size_t bytes) = 0;

  /// In a forked child: let go of what belongs to the parent.
  virtual void abandon() {}
};

/// A file, written with pwrite: the page cache keeps what was written when the process is killed,
/// and a full disk is an error code (under a writable mmap it would be a SIGBUS).
class FileStorage : public Storage {
 public:
  /// Throws std::system_error. The file is locked (flock) against a second recorder where the file
  /// system can do that.
  FileStorage(const std::string& path, bool overwrite);
  ~FileStorage() override;
  FileStorage(const FileStorage&) = delete;
  FileStorage& operator=(const FileStorage&) = delete;

  int write(uint64_t offset, const void* data, size_t bytes) override;
  void abandon() override;

 private:
  int fd_;
};

/// The same bytes in memory, in pages that are made when they are first written.
class MemoryStorage : public Storage {
 public:
  int write(uint64_t offset, const void* data, size_t bytes) override;
  uint64_t size() const { return size_; }
  void read(void* out) const;  ///< all `size()` bytes

 private:
  static constexpr size_t kPage = 16384;
  std::vector<std::unique_ptr<uint8_t[]>> pages_;
  uint64_t size_ = 0;
};

}  // namespace pig
