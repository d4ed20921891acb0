// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <span>
#include <vector>

#include "check.h"
#include "drained_part.h"
#include "record/collective_series.h"

namespace {

using pig::CollectiveItem;
using pig::CollectiveSeries;
using Series = DrainedPart<CollectiveSeries>;

std::span<const uint8_t> bytes_of(const std::vector<CollectiveItem>& items, size_t cut = 0) {
  return {reinterpret_cast<const uint8_t*>(items.data()),
          items.size() * sizeof(CollectiveItem) - cut};
}

std::vector<CollectiveItem> items(size_t count) {
  std::vector<CollectiveItem> made(count);
  for (size_t i = 0; i < count; ++i) made[i].sequence = static_cast<int64_t>(i);
  return made;
}

void half_an_item_is_none() {
  Series series;
  CHECK_EQ(series.part.append(bytes_of(items(2), 1)), 1u);
  CHECK_EQ(series.part.append({}), 0u);
  CHECK_EQ(series.take<CollectiveItem>().size(), 1u);
}

void what_has_no_room_is_left_out() {
  Series series;
  CHECK_EQ(series.part.append(bytes_of(items(CollectiveSeries::kMaxPending - 1))),
           CollectiveSeries::kMaxPending - 1);
  CHECK_EQ(series.part.append(bytes_of(items(3))), 1u);
  CHECK_EQ(series.part.append(bytes_of(items(3))), 0u);
  CHECK_EQ(series.take<CollectiveItem>().size(), CollectiveSeries::kMaxPending);
  CHECK_EQ(series.part.append(bytes_of(items(3))), 3u);
}

}  // namespace

int main() {
  half_an_item_is_none();
  what_has_no_room_is_left_out();
  return 0;
}
