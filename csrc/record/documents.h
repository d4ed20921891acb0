// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "record/part.h"

namespace pig {

/// The documents that others make, as JSON: the environment, memory, operations, ...
class Documents final : public Part {
 public:
  void reset(const Session& session) override {
    {
      const std::lock_guard lock(mutex_);
      documents_.clear();
    }
    set(BlockType::kEnvironment, session.options.environment);
  }

  /// The harvester writes it at its next turn: this waits for no disk.
  void set(BlockType type, std::string json) {
    const std::lock_guard lock(mutex_);
    documents_[type] = {std::move(json), true};
    note_change();
  }

  void drain(Harvest& harvest) override { write(harvest.log, /*unchanged=*/false); }
  void restate(RunLog& log, Copy copy) override {
    if (copy == Copy::kAllButHistory) write(log, /*unchanged=*/true);
  }

 private:
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
};

}  // namespace pig
