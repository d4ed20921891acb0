// SPDX-License-Identifier: Apache-2.0
#include "log/storage.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/throwing.h"

namespace pig {

std::string storage_error_text(int error) {
  if (error == kDescriptorLost) return "the program has closed its file descriptor";
  if (error == kFileShortened) return "the file was made shorter by another program";
  return std::generic_category().message(error);
}

FileStorage::FileStorage(const std::string& path, bool overwrite) {
  const auto fail = [](int error, const char* what) {
    throw std::system_error(error, std::generic_category(), what);
  };
  descriptor_ = HighDescriptor(
      open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (overwrite ? 0 : O_EXCL), 0666));
  const int fd = descriptor_.number();
  if (fd < 0) fail(errno, "open");
  // Emptied only once the lock is ours: another process may be recording into it.
  if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    fail(EBUSY, "another process is recording into it");
  if (ftruncate(fd, 0) != 0) fail(errno, "truncate");
}

int FileStorage::check() {
  struct stat status;
  if (error_ == 0 && !descriptor_.is_ours(status)) {
    error_ = kDescriptorLost;
  } else if (error_ == 0 && static_cast<uint64_t>(status.st_size) < end_) {
    error_ = kFileShortened;
  }
  return error_;
}

int FileStorage::write(uint64_t offset, const void* data, size_t bytes) {
  if (error_ != 0) return error_;
  const auto* p = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    const ssize_t written = pwrite(descriptor_.number(), p, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    p += written;
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<size_t>(written);
    end_ = std::max(end_, offset);
  }
  return 0;
}

namespace {
std::atomic<int64_t> memory_held_bytes{0};
}  // namespace

int64_t MemoryStorage::held_bytes() { return memory_held_bytes.load(std::memory_order_relaxed); }

MemoryStorage::~MemoryStorage() {
  const auto pages = std::count_if(pages_.begin(), pages_.end(), [](auto& page) { return !!page; });
  memory_held_bytes -= static_cast<int64_t>(pages) * static_cast<int64_t>(kPage);
}

MemoryStorage::MemoryStorage(bool keeps_descriptor) {
  if (keeps_descriptor) spare_ = HighDescriptor(memfd_create("pyinstrument_gpu", MFD_CLOEXEC));
}

int MemoryStorage::write(uint64_t offset, const void* data, size_t bytes) {
  const bool fits = try_allocating([&] {
    const auto* p = static_cast<const uint8_t*>(data);
    size_ = std::max(size_, offset + bytes);
    pages_.resize((size_ + kPage - 1) / kPage);
    while (bytes > 0) {
      auto& page = pages_[offset / kPage];
      if (!page) {
        page = std::make_unique<uint8_t[]>(kPage);
        memory_held_bytes += kPage;
      }
      const size_t at = offset % kPage;
      const size_t count = std::min(bytes, kPage - at);
      std::memcpy(&page[at], p, count);
      p += count;
      offset += count;
      bytes -= count;
    }
  });
  return fits ? 0 : ENOMEM;
}

void MemoryStorage::read(void* out) const {
  auto* p = static_cast<uint8_t*>(out);
  std::memset(p, 0, size_);
  for (size_t i = 0; i < pages_.size(); ++i)
    if (pages_[i])
      std::memcpy(p + i * kPage, pages_[i].get(), std::min<uint64_t>(kPage, size_ - i * kPage));
}

}  // namespace pig
