// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "check.h"
#include "log/block_log.h"
#include "log/log_subscription.h"
#include "log/storage.h"

namespace {

using pig::BlockLog;
using pig::BlockType;
using pig::LogSubscription;
using Bytes = std::vector<uint8_t>;

struct Record {
  uint32_t type;
  Bytes payload;
};

std::vector<Record> records(const Bytes& taken) {
  std::vector<Record> found;
  for (size_t at = 0; at < taken.size();) {
    uint32_t head[2];
    std::memcpy(head, &taken[at], sizeof head);
    const auto begin = taken.begin() + static_cast<std::ptrdiff_t>(at) + 16;
    found.push_back({head[0], Bytes(begin, begin + head[1])});
    at += 16 + head[1];
  }
  return found;
}

constexpr auto kNames = static_cast<uint16_t>(BlockType::kNames);
constexpr auto kState = static_cast<uint16_t>(BlockType::kState);
constexpr auto kStatistics = static_cast<uint16_t>(BlockType::kStatistics);

void only_the_newest_document() {
  LogSubscription subscription;
  subscription.replace(kStatistics, Bytes{1});
  subscription.replace(kState, Bytes{2});
  subscription.replace(kState, Bytes{3, 4});
  subscription.append(kNames, 0, Bytes{9}, false);
  const auto found = records(subscription.take());
  CHECK_EQ(found.size(), 3u);
  CHECK_EQ(found[0].type, kNames);  // before what may refer to it
  CHECK(found[1].payload == Bytes({3, 4}));
  CHECK(found[2].payload == Bytes({1}));
  CHECK(subscription.take().empty());
}

/// A storage that fails.
class FullStorage : public pig::Storage {
 public:
  int write(uint64_t, const void*, size_t) override { return 28; }
};

void log_tells_its_subscriptions_also_after_an_error() {
  FullStorage storage;
  BlockLog log(storage, 1, 1000, uint64_t{1} << 40);
  LogSubscription subscription;
  log.append(BlockType::kNames, Bytes{7});
  log.add_subscription(&subscription);
  LogSubscription other;
  log.add_subscription(&other);
  log.append(BlockType::kNames, Bytes{8});
  log.write_document(BlockType::kState, Bytes{9});
  CHECK(log.error() != 0);
  log.remove_subscription(&subscription);
  log.append(BlockType::kNames, Bytes{10});
  const auto found = records(subscription.take());
  CHECK_EQ(found.size(), 2u);
  CHECK(found[0].payload == Bytes({8}));
  CHECK(found[1].payload == Bytes({9}));
  CHECK_EQ(records(other.take()).size(), 3u);
}

}  // namespace

int main() {
  only_the_newest_document();
  log_tells_its_subscriptions_also_after_an_error();
}
