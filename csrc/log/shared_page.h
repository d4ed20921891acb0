// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "log/items.h"

namespace pig {

/// The newest steps of a recording into a file, which is up to a tick behind, where they outlive a
/// process that is killed: core/file/shared_page.py reads them.
///
/// A small file of /dev/shm, mapped: to note a step takes some stores and no system call. In a page
/// of the run file a store may wait for a disk; a tmpfs has none. Its memory is taken before, as a
/// store into a tmpfs that is full would be a SIGBUS. The mapping keeps it locked (flock): whoever
/// can lock it knows that its process is gone, in whatever container. Where any of this fails there
/// is none. Not synchronised.
class SharedPage {
 public:
  ~SharedPage() { abandon(); }

  /// `path`: of the run file, which is there.
  void open(uint64_t run_id, const std::string& path) {
    char absolute[PATH_MAX];
    std::snprintf(name_, sizeof name_, "/dev/shm/pyinstrument-gpu-%016llx",
                  static_cast<unsigned long long>(run_id));
    const int file = ::open(name_, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return;
    struct statfs system;
    if (flock(file, LOCK_EX | LOCK_NB) == 0 && realpath(path.c_str(), absolute) != nullptr &&
        fstatfs(file, &system) == 0 && system.f_type == TMPFS_MAGIC &&
        posix_fallocate(file, 0, sizeof(Content)) == 0) {
      constexpr int kAccess = PROT_READ | PROT_WRITE;
      void* page = mmap(nullptr, sizeof(Content), kAccess, MAP_SHARED | MAP_POPULATE, file, 0);
      if (page != MAP_FAILED) content_ = static_cast<Content*>(page);
    }
    ::close(file);
    if (content_ == nullptr) {
      unlink(name_);
      return;
    }
    content_->run_id = run_id;
    std::snprintf(content_->path, sizeof content_->path, "%s", absolute);
  }

  void note(const StepItem& step) {
    if (content_ == nullptr) return;
    const uint64_t count = content_->count;
    content_->steps[count % kSteps] = step;
    __atomic_store_n(&content_->count, count + 1, __ATOMIC_RELEASE);
  }

  /// The run file has all of it.
  void remove() {
    if (content_ != nullptr) unlink(name_);
    abandon();
  }
  /// In a forked child, whose parent it belongs to.
  void abandon() {
    if (content_ != nullptr) munmap(std::exchange(content_, nullptr), sizeof(Content));
  }

 private:
  static constexpr size_t kSteps = 400;
  struct Content {
    uint64_t run_id;
    uint64_t count;  ///< of steps so far
    char path[PATH_MAX];
    StepItem steps[kSteps];
  };

  Content* content_ = nullptr;
  char name_[64];
};

}  // namespace pig
