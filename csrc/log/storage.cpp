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
#include <ctime>
#include <system_error>

#include "base/throwing.h"
#include "base/ticks.h"

namespace pig {

std::string storage_error_text(int error) {
  if (error == kDescriptorLost) return "the program has closed its file descriptor";
  if (error == kFileShortened) return "the file was made shorter by another program";
  return std::generic_category().message(error);
}

namespace {

[[noreturn]] void fail(int error, const char* what) {
  throw std::system_error(error, std::generic_category(), what);
}

HighDescriptor make_file(const std::string& path) {
  HighDescriptor made(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (made.number() < 0) fail(errno, "open");
  return made;
}

/// Against a second recorder, where the file system can do that. The lock of a process that was
/// killed a moment ago was seen held for some milliseconds more, by no process that /proc shows, so
/// that a program which is started again at once waits for it.
void lock(const HighDescriptor& file) {
  constexpr int64_t kPatienceNs = 250'000'000;
  constexpr timespec kPause = {0, 2'000'000};
  const int64_t begun_ns = read_clock_ns(CLOCK_MONOTONIC);
  while (flock(file.number(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (read_clock_ns(CLOCK_MONOTONIC) - begun_ns > kPatienceNs)
      fail(EBUSY, "another process is recording into it");
    nanosleep(&kPause, nullptr);
  }
}

/// The file, locked, if it may give way to a new run: it is a run file, however damaged, or empty,
/// as a recorder leaves it that was killed at once. A link is neither.
HighDescriptor lock_replaceable(const std::string& path) {
  struct stat named, locked;
  if (lstat(path.c_str(), &named) != 0) fail(errno, "stat");
  if (S_ISDIR(named.st_mode)) fail(EISDIR, "open");
  if (!S_ISREG(named.st_mode)) fail(EEXIST, "no run file");
  HighDescriptor file(open(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.number() < 0) fail(errno, "open");
  lock(file);
  // Another recorder may have replaced it meanwhile.
  if (lstat(path.c_str(), &named) != 0 || !file.is_ours(locked) || named.st_ino != locked.st_ino ||
      named.st_dev != locked.st_dev)
    fail(EBUSY, "another process is recording into it");
  uint8_t begin[sizeof kFileMagic];
  const ssize_t count = pread(file.number(), begin, sizeof begin, 0);
  if (count != 0 && (count != sizeof begin || std::memcmp(begin, kFileMagic, sizeof begin) != 0))
    fail(EEXIST, "no run file");
  return file;
}

}  // namespace

FileStorage::FileStorage(const std::string& path, bool overwrite) : path_(path) {
  if (struct stat there; !overwrite || lstat(path.c_str(), &there) != 0) {
    descriptor_ = make_file(path);
    lock(descriptor_);
    return;
  }
  const HighDescriptor old = lock_replaceable(path);
  // A new file takes its name: whoever reads the old one, or has it under another name, keeps it.
  const std::string part = path.substr(0, path.rfind('/') + 1) + "." + std::to_string(getpid()) +
                           "." + std::to_string(read_clock_ns(CLOCK_REALTIME)) + ".part";
  descriptor_ = make_file(part);
  lock(descriptor_);
  if (rename(part.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(part.c_str());
    fail(error, "rename");
  }
}

void FileStorage::discard() {
  struct stat named, own;
  // Nobody else's that has taken the name meanwhile.
  if (descriptor_.is_ours(own) && lstat(path_.c_str(), &named) == 0 && named.st_ino == own.st_ino &&
      named.st_dev == own.st_dev)
    unlink(path_.c_str());
  abandon();
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
