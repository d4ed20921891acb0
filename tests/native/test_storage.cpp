// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "check.h"
#include "log/storage.h"
#include "temporary_directory.h"

namespace {

using pig::FileStorage;
using pig::MemoryStorage;

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The errno with which the file could not be opened, or 0.
int error_of(const std::string& path, bool overwrite) {
  try {
    const FileStorage storage(path, overwrite);
    return 0;
  } catch (const std::system_error& error) {
    return error.code().value();
  }
}

int write(pig::Storage& storage, uint64_t offset, const std::string& text) {
  return storage.write(offset, text.data(), text.size());
}

void test_writes_in_place(const TemporaryDirectory& directory) {
  const std::string path = directory / "plain";
  FileStorage storage(path, false);
  CHECK_EQ(write(storage, 4, "five!"), 0);
  CHECK_EQ(write(storage, 0, "four"), 0);
  CHECK_EQ(write(storage, 12, ""), 0);
  // There before the file is closed: what a killed process leaves.
  CHECK(contents(path) == "fourfive!");
}

const std::string magic(std::begin(pig::kFileMagic), std::end(pig::kFileMagic));

void test_only_a_run_file_gives_way(const TemporaryDirectory& directory) {
  const std::string run = directory / "run", other_name = directory / "other name";
  const std::string link = directory / "link", pipe = directory / "pipe";
  for (const std::string& text : {magic + "damaged", magic, std::string()}) {
    std::ofstream(run) << text;
    std::filesystem::create_hard_link(run, other_name);
    CHECK_EQ(error_of(run, true), 0);
    CHECK(contents(run).empty());
    CHECK(contents(other_name) == text);  // another file has taken the name
    std::filesystem::remove(other_name);
  }
  std::ofstream(run) << magic;
  std::filesystem::create_symlink(run, link);
  CHECK_EQ(error_of(link, true), EEXIST);
  CHECK(contents(run) == magic);
  CHECK_EQ(mkfifo(pipe.c_str(), 0600), 0);
  CHECK_EQ(error_of(pipe, true), EEXIST);
  std::ofstream(run) << magic.substr(1);
  CHECK_EQ(error_of(run, true), EEXIST);
  size_t left = 0;  // and nothing beside them
  for (const auto& entry : std::filesystem::directory_iterator(directory / "."))
    left += entry.path().extension() == ".part";
  CHECK_EQ(left, 0U);
}

void test_locked_against_second_recorder(const TemporaryDirectory& directory) {
  const std::string path = directory / "locked";
  {
    FileStorage storage(path, false);
    CHECK_EQ(write(storage, 0, magic), 0);
    CHECK_EQ(error_of(path, true), EBUSY);
    CHECK(contents(path) == magic);
  }
  CHECK_EQ(error_of(path, true), 0);
}

void test_discarding_takes_away_what_is_its_own(const TemporaryDirectory& directory) {
  const std::string path = directory / "discarded";
  {
    FileStorage storage(path, false);
    CHECK_EQ(write(storage, 0, "begin"), 0);
    storage.discard();
    CHECK(!std::filesystem::exists(path));
    CHECK_EQ(write(storage, 0, "late"), EBADF);
  }
  FileStorage storage(path, false);
  CHECK_EQ(unlink(path.c_str()), 0);
  std::ofstream(path) << "precious";
  storage.discard();
  CHECK(contents(path) == "precious");
}

void test_abandoning_closes_the_file(const TemporaryDirectory& directory) {
  const std::string path = directory / "abandoned";
  FileStorage storage(path, false);
  storage.abandon();
  CHECK_EQ(write(storage, 0, "late"), EBADF);
  CHECK_EQ(error_of(path, true), 0);  // the lock went with it
  storage.abandon();
}

/// In a process of its own, for its limits stay with it.
void in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

/// The descriptor under which the process has the file open; -1 for none.
int descriptor_of(const std::string& path) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    if (std::filesystem::read_symlink(entry.path(), error) == path)
      return std::stoi(entry.path().filename());
  }
  return -1;
}

void test_descriptor_is_high(const TemporaryDirectory& directory) {
  struct Case {
    rlim_t limit;
    int lowest;
  };
  for (const auto& [limit, lowest] :
       {Case{5000, 4000}, Case{1024, 1000}, Case{256, 240}, Case{64, 60}, Case{32, 0}}) {
    const std::string path = directory / "high" + std::to_string(limit);
    in_child([&, limit = limit, lowest = lowest] {
      rlimit before;
      CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
      const rlimit lowered{std::min(limit, before.rlim_max), before.rlim_max};
      CHECK_EQ(setrlimit(RLIMIT_NOFILE, &lowered), 0);
      FileStorage storage(path, false);
      const int descriptor = descriptor_of(path);
      CHECK(descriptor >= lowest || lowered.rlim_cur < limit);
      CHECK_EQ(fcntl(descriptor, F_GETFD), FD_CLOEXEC);
      CHECK_EQ(write(storage, 0, "high"), 0);
      CHECK_EQ(error_of(path, true), EBUSY);
      CHECK(contents(path) == "high");
    });
  }
}

/// Another file under the same number is neither written nor closed.
void test_descriptor_that_was_taken(const TemporaryDirectory& directory) {
  const std::string path = directory / "taken";
  const std::string other_path = directory / "other";
  std::ofstream(other_path) << "precious";
  const int other = open(other_path.c_str(), O_RDWR | O_CLOEXEC);
  int number;
  {
    FileStorage storage(path, false);
    CHECK_EQ(write(storage, 0, "mine"), 0);
    CHECK_EQ(storage.check(), 0);
    number = descriptor_of(path);
    CHECK_EQ(dup2(other, number), number);
    CHECK_EQ(storage.check(), pig::kDescriptorLost);
    CHECK_EQ(write(storage, 0, "late"), pig::kDescriptorLost);
    storage.abandon();
  }
  CHECK_EQ(fcntl(number, F_GETFD), 0);
  {
    FileStorage storage(directory / "unchecked", false);
    const int second = descriptor_of(directory / "unchecked");
    CHECK_EQ(dup2(other, second), second);
    storage.abandon();
    CHECK_EQ(fcntl(second, F_GETFD), 0);
    close(second);
  }
  CHECK(contents(path) == "mine");
  CHECK(contents(other_path) == "precious");
  close(number);
  close(other);
}

std::string contents(const MemoryStorage& storage) {
  std::string bytes(storage.size(), '?');
  storage.read(bytes.data());
  return bytes;
}

void test_memory_is_like_a_file(const TemporaryDirectory& directory) {
  const std::string path = directory / "twin";
  FileStorage file(path, false);
  MemoryStorage memory;
  CHECK_EQ(memory.size(), 0u);
  CHECK(contents(memory).empty());

  struct Write {
    uint64_t offset;
    size_t bytes;
  };
  // Inside a page, over the boundary of two, over some whole ones, and beyond a hole.
  const std::vector<Write> writes = {{100, 10},           {0, 1},      {16380, 8},
                                     {16384, 16384},      {5, 50'000}, {49'999, 7000},
                                     {10 * 16384, 16384}, {300'000, 1}};
  char fill = 'a';
  for (const Write& one : writes) {
    const std::string bytes(one.bytes, fill++);
    CHECK_EQ(write(file, one.offset, bytes), 0);
    CHECK_EQ(write(memory, one.offset, bytes), 0);
    CHECK(contents(memory) == contents(path));
  }
}

}  // namespace

int main() {
  const TemporaryDirectory directory;
  test_writes_in_place(directory);
  test_only_a_run_file_gives_way(directory);
  test_locked_against_second_recorder(directory);
  test_discarding_takes_away_what_is_its_own(directory);
  test_abandoning_closes_the_file(directory);
  test_descriptor_is_high(directory);
  test_descriptor_that_was_taken(directory);
  test_memory_is_like_a_file(directory);
}
