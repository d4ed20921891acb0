// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "record/part.h"

namespace pig {

/// The documents that others make, as JSON: the environment, memory, operations, ...
///
/// Those without a block type of their own lie together in ASPECTS: an object with one member each.
class Documents final : public Part {
 public:
  void reset(const Session& session) override {
    {
      const std::lock_guard lock(mutex_);
      documents_.clear();
      of_aspects_.clear();
    }
    set(BlockType::kEnvironment, session.options.environment);
  }

  /// The harvester writes it at its next turn: this waits for no disk.
  void set(BlockType type, std::string json) {
    const std::lock_guard lock(mutex_);
    documents_[type] = {std::move(json), true};
    note_change();
  }

  /// The name is that of a block's type in small letters, or any other of [a-z0-9_].
  void set(const std::string& name, std::string json) {
    for (const auto& [known, type] : kWithBlocks)
      if (known == name) return set(type, std::move(json));
    const std::lock_guard lock(mutex_);
    of_aspects_[name] = std::move(json);
    std::string all;
    for (const auto& [one, content] : of_aspects_)
      all.append(all.empty() ? "{\"" : ",\"").append(one).append("\":").append(content);
    documents_[BlockType::kAspects] = {all + "}", true};
    note_change();
  }

  void drain(Harvest& harvest) override { write(harvest.log, /*unchanged=*/false); }
  void write_copy(RunLog& log, Copy copy) override {
    if (copy == Copy::kAllButHistory) write(log, /*unchanged=*/true);
  }

 private:
  static constexpr std::pair<std::string_view, BlockType> kWithBlocks[] = {
      {"environment", BlockType::kEnvironment},
      {"operations", BlockType::kOperations},
      {"memory", BlockType::kMemory},
      {"energy", BlockType::kEnergy},
      {"collective_groups", BlockType::kCollectiveGroups},
  };

  struct Document {
    std::string json;
    bool has_changed;
  };

  void write(RunLog& log, bool unchanged) {
    std::vector<std::pair<BlockType, std::string>> due;
    {
      const std::lock_guard lock(mutex_);
      for (auto& [type, document] : documents_)
        if (std::exchange(document.has_changed, false) || unchanged)
          due.emplace_back(type, document.json);
    }
    for (const auto& [type, json] : due) log.write_document(type, json);
  }

  std::mutex mutex_;  ///< the innermost; held for as long as strings are copied
  std::map<BlockType, Document> documents_;
  std::map<std::string, std::string> of_aspects_;
};

}  // namespace pig
