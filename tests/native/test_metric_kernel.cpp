// SPDX-License-Identifier: Apache-2.0
//
// Launches of the metric kernel that run at once, in every order of their blocks up to a number of
// changes between them, and in many random ones: an update is added as a whole or counted as lost,
// and the update after it is exact. Arguments: that number of changes, and of random orders.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "check.h"
#include "emulated_cuda.h"
#include "metrics/metric_device.h"
#include "metrics/metric_kernel.cu"

using namespace pig::metrics;
using emulated::Machine;
using emulated::Stop;

namespace {

size_t most_delays = 3;
unsigned random_orders = 56;  // four of each rate of changes

constexpr int kMaxRows = 600;
constexpr I64 kClasses = 2;
const std::array<float, kMaxRows * kClasses> kLogits{};  // the first class is the prediction
const std::array<I64, kMaxRows> kTargets{};

/// An update whose rows all have one weight, so that the state tells which updates it has.
struct Update {
  unsigned generation;
  int slot;
  unsigned blocks;
  I64 rows;
  double weight;

  Batch batch() const {
    Batch made{};
    made.logits = kLogits.data();
    made.target = kTargets.data();
    made.weight = &weight;
    made.logits_format = kFloat32;
    made.target_format = kInt64;
    made.weight_format = kFloat64;
    made.dims = 1;
    made.rows = rows;
    made.classes = kClasses;
    made.class_stride = 1;
    made.sizes[0] = rows;
    made.logits_strides[0] = kClasses;
    made.target_strides[0] = 1;
    made.ignore_index = -100;
    made.topk[0] = 1;
    return made;
  }
};

struct Accumulator {
  State state{};
  Scratch scratch{};
  Snapshot snapshot{};

  void launch(Machine& machine, const Update& update) {
    const UpdateParameters p{launch_of(update.generation, update.slot), update.batch()};
    machine.launch(update.blocks, [p] { pig_metric_update_float32_thread(p); });
  }

  void launch_scalar(Machine& machine, double value) {
    const ScalarParameters p{launch_of(1, 0), nullptr, kNone, 0, value, 0};
    machine.launch(1, [p] { pig_metric_scalar(p); });
  }

  LaunchParameters launch_of(unsigned generation, int slot) {
    return {&state, &scratch, &snapshot, generation, slot, kMaxScalars, 0};
  }

  void run_alone(const Update& update) {
    Machine machine;
    launch(machine, update);
    machine.run();
  }

  /// What the host reads.
  State published(U64& lost) const {
    State shown;
    const std::span bytes(reinterpret_cast<uint8_t*>(&shown), sizeof shown);
    CHECK(read_publication(snapshot, newest_publication(snapshot), bytes, lost));
    return shown;
  }

  void check_at_rest() const {
    CHECK_EQ(scratch.lock, 0u);
    for (const Slot& slot : scratch.slots) {
      CHECK_EQ(slot.progress, 0u);
      CHECK_EQ(slot.launches, 0u);
    }
    U64 lost = 0;
    const State shown = published(lost);
    CHECK_EQ(newest_publication(snapshot), scratch.sequence);
    CHECK_EQ(lost, scratch.lost);
    CHECK(std::memcmp(&shown, &state, sizeof state) == 0);
  }
};

/// Every order of the blocks' atomic operations that comes from running one block after the other
/// by up to so many delays: before an atomic operation, or where a block would begin, the next one
/// that can goes on in its stead.
class EveryOrder {
 public:
  explicit EveryOrder(size_t max_delays) : max_delays_(max_delays) {}

  /// Whether there is one that has not been had.
  bool next() {
    delays_ = at_ = last_ = 0;
    if (std::exchange(is_first_, false)) return true;
    while (!decisions_.empty() && ++decisions_.back().delays == decisions_.back().options)
      decisions_.pop_back();
    return !decisions_.empty();
  }

  size_t operator()(const std::vector<size_t>& able, Stop why) {
    const auto found = std::lower_bound(able.begin(), able.end(), last_);
    const bool can_go_on = found != able.end() && *found == last_;
    if (can_go_on && why != Stop::kAtomic) return last_;
    if (at_ == decisions_.size())
      decisions_.push_back({0, std::min(able.size(), max_delays_ - delays_ + 1)});
    const size_t delays = decisions_[at_++].delays;
    delays_ += delays;
    const auto index = static_cast<size_t>(found - able.begin()) + delays;
    return last_ = able[index % able.size()];
  }

 private:
  struct Decision {
    size_t delays;
    size_t options;
  };
  size_t max_delays_;
  size_t delays_ = 0;
  size_t last_ = 0;
  size_t at_ = 0;
  bool is_first_ = true;
  std::vector<Decision> decisions_;
};

/// So many random orders, in which blocks also change while a block's threads wait for each other.
class RandomOrders {
 public:
  explicit RandomOrders(unsigned count) : left_(count) {}

  bool next() {
    random_.seed(left_);
    change_one_in_ = 1u << left_ % 14;
    return left_-- != 0;
  }

  size_t operator()(const std::vector<size_t>& able, Stop) {
    const bool can_go_on = std::find(able.begin(), able.end(), last_) != able.end();
    if (!can_go_on || random_() % change_one_in_ == 0) last_ = able[random_() % able.size()];
    return last_;
  }

 private:
  unsigned left_;
  unsigned change_one_in_ = 1;
  size_t last_ = 0;
  std::mt19937 random_;
};

/// Which of the updates the state has; fails where it has a part of one. Weights are powers of two,
/// too far from each other for sums of a part to look like another's.
unsigned number_added(const Accumulator& accumulator, const std::vector<Update>& updates) {
  for (unsigned subset = 0; subset < 1u << updates.size(); ++subset) {
    double weight = 0;
    U64 count = 0;
    unsigned number = 0;
    for (size_t i = 0; i < updates.size(); ++i)
      if ((subset >> i & 1) != 0) {
        weight += static_cast<double>(updates[i].rows) * updates[i].weight;
        count += static_cast<U64>(updates[i].rows);
        ++number;
      }
    const State& state = accumulator.state;
    if (state.count == count && state.weight == weight && state.correct[0] == weight) return number;
  }
  std::fprintf(stderr, "the state has a part of an update: %llu rows of weight %g\n",
               accumulator.state.count, accumulator.state.weight);
  std::abort();
}

struct Seen {
  unsigned orders = 0;
  unsigned with_lost = 0;
};

/// Runs the updates at once in each order, and where one was lost each of them again, alone.
template <typename Orders>
Seen run_at_once(const std::vector<Update>& updates, Orders orders) {
  Seen seen;
  const auto accumulator = std::make_unique<Accumulator>();
  while (orders.next()) {
    ++seen.orders;
    // All of it starts at 0; what earlier orders have left in the parts is as good as any.
    accumulator->state = {};
    accumulator->scratch.lost = 0;
    Machine machine;
    for (const Update& update : updates) accumulator->launch(machine, update);
    // In between the host sees the newest publication or the one before, and never one of before.
    unsigned seen_number = newest_publication(accumulator->snapshot);
    U64 seen_updates = 0;
    machine.run([&](const std::vector<size_t>& able, Stop why) {
      const Snapshot& snapshot = accumulator->snapshot;
      const unsigned newest = newest_publication(snapshot);
      if (newest == seen_number || why == Stop::kWaits) return orders(able, why);
      State shown;
      U64 lost = 0;
      const std::span bytes(reinterpret_cast<uint8_t*>(&shown), sizeof shown);
      const bool is_whole = read_publication(snapshot, newest, bytes, lost);
      if (!is_whole) CHECK(newest == 1 || read_publication(snapshot, newest - 1, bytes, lost));
      if (!is_whole) return orders(able, why);
      seen_number = newest;
      CHECK(lost <= updates.size());
      CHECK(shown.updates <= updates.size() && shown.updates >= seen_updates);
      seen_updates = shown.updates;
      return orders(able, why);
    });

    accumulator->check_at_rest();
    const U64 lost = accumulator->scratch.lost;
    CHECK_EQ(number_added(*accumulator, updates) + lost, updates.size());
    CHECK_EQ(accumulator->state.updates, updates.size());
    if (lost == 0) continue;
    ++seen.with_lost;

    // Also as in a replay of a graph: the same generation again.
    for (const Update& update : updates) {
      const State before = accumulator->state;
      accumulator->run_alone(update);
      accumulator->check_at_rest();
      CHECK_EQ(accumulator->scratch.lost, lost);
      CHECK_EQ(accumulator->state.updates, before.updates + 1);
      CHECK_EQ(accumulator->state.count, before.count + static_cast<U64>(update.rows));
      CHECK_EQ(accumulator->state.weight,
               before.weight + static_cast<double>(update.rows) * update.weight);
    }
  }
  return seen;
}

constexpr Update kOne{1, 0, 2, 300, 1};
constexpr Update kOther{2, 0, 2, 290, 0x1p12};
constexpr Update kOfOneBlock{3, 0, 1, 7, 0x1p24};
constexpr Update kOfOneBlockToo{5, 0, 1, 9, 0x1p40};
constexpr Update kOfThreeBlocks{4, 0, 3, 560, 0x1p30};

void report(const char* what, const Seen& seen) {
  std::printf("%s: %u orders, %u with an update that was lost\n", what, seen.orders,
              seen.with_lost);
}

void test_updates_in_one_slot() {
  for (const auto& updates : {std::vector<Update>{kOne, kOther}, {kOfThreeBlocks, kOther}}) {
    const Seen seen = run_at_once(updates, EveryOrder(most_delays));
    report("in one slot", seen);
    CHECK(seen.with_lost != 0 && seen.with_lost != seen.orders);
  }
  report("in one slot, at random", run_at_once({kOne, kOther}, RandomOrders(random_orders)));
  report("in one slot, at random",
         run_at_once({kOne, kOther, kOfThreeBlocks}, RandomOrders(random_orders)));
}

void test_an_update_of_one_block_needs_no_slot() {
  CHECK_EQ(run_at_once({kOne, kOfOneBlock}, EveryOrder(most_delays)).with_lost, 0u);
  CHECK_EQ(run_at_once({kOfOneBlock, kOfOneBlockToo}, EveryOrder(most_delays)).with_lost, 0u);
}

/// Values of a tensor, which add to a running value, but are no update.
void test_values_in_the_slot_of_an_update() {
  static const std::array<double, 300> numbers = [] {
    std::array<double, 300> made{};
    made.fill(2);
    return made;
  }();
  const auto accumulator = std::make_unique<Accumulator>();
  EveryOrder orders(2);
  unsigned seen_added = 0, seen_lost = 0;
  while (orders.next()) {
    accumulator->state = {};
    accumulator->scratch.lost = 0;
    Machine machine;
    accumulator->launch(machine, kOne);
    ValuesParameters p{};
    p.launch = accumulator->launch_of(2, 0);
    p.batch.operands[kValue] = {numbers.data(), kFloat64, {1}};
    p.batch.dims = 1;
    p.batch.sizes[0] = p.batch.elements = 300;
    machine.launch(2, [p] { pig_metric_values(p); });
    machine.run(std::ref(orders));
    accumulator->check_at_rest();
    const State& state = accumulator->state;
    const Scalar& scalar = state.scalars[0];
    CHECK_EQ(state.updates, 1u);
    CHECK(state.count == 0 || state.count == static_cast<U64>(kOne.rows));
    CHECK(scalar.updates == 0 || (scalar.count == 300 && scalar.sum == 600 && scalar.max == 2));
    const U64 added = (state.count != 0 ? 1u : 0u) + scalar.updates;
    CHECK_EQ(added + accumulator->scratch.lost, 2u);
    (added == 2 ? seen_added : seen_lost) += 1;
  }
  CHECK(seen_added != 0 && seen_lost != 0);
}

void test_updates_in_slots_of_their_own() {
  Update other = kOther;
  other.slot = 1;
  CHECK_EQ(run_at_once({kOne, other}, EveryOrder(most_delays)).with_lost, 0u);
  CHECK_EQ(run_at_once({kOne, other}, RandomOrders(random_orders)).with_lost, 0u);
}

void test_a_scalar_beside_an_update() {
  const auto accumulator = std::make_unique<Accumulator>();
  EveryOrder orders(2);
  for (U64 run = 1; orders.next(); ++run) {
    Machine machine;
    accumulator->launch(machine, kOne);
    accumulator->launch_scalar(machine, 0.5);
    accumulator->launch_scalar(machine, 1.5);
    machine.run(std::ref(orders));
    accumulator->check_at_rest();
    CHECK_EQ(accumulator->scratch.lost, 0u);
    CHECK_EQ(accumulator->state.count, run * static_cast<U64>(kOne.rows));
    CHECK_EQ(accumulator->state.scalars[0].count, 2 * run);
    CHECK_EQ(accumulator->state.scalars[0].sum, 2.0 * static_cast<double>(run));
  }
}

void test_what_is_published() {
  const auto accumulator = std::make_unique<Accumulator>();
  accumulator->state.scalars[0].sum = 1;
  accumulator->state.scalars[1].sum = 2;
  accumulator->state.scalars[2].sum = 3;
  const auto launch = [&](unsigned scalars) {
    Machine machine;
    const UpdateParameters p{
        {&accumulator->state, &accumulator->scratch, &accumulator->snapshot, 1, 0, scalars, 0},
        kOne.batch()};
    machine.launch(1, [p] { pig_metric_update_float32_thread(p); });
    machine.run();
  };
  launch(2);
  U64 lost = 0;
  CHECK_EQ(accumulator->published(lost).count, 300u);
  CHECK_EQ(accumulator->published(lost).scalars[1].sum, 2.0);
  CHECK_EQ(accumulator->published(lost).scalars[2].sum, 0.0);
  // A graph from before there were as many, after a reset.
  accumulator->state.scalars[1].sum = 4;
  launch(1);
  CHECK_EQ(accumulator->published(lost).scalars[1].sum, 4.0);
  // As long as a word is not there, it is the publication before that is.
  accumulator->snapshot.halves[0][7] = 0;
  State shown;
  const std::span bytes(reinterpret_cast<uint8_t*>(&shown), sizeof shown);
  CHECK(!read_publication(accumulator->snapshot, 2, bytes, lost));
  CHECK(read_publication(accumulator->snapshot, 1, bytes, lost));
  CHECK_EQ(shown.scalars[1].sum, 2.0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2) {
    most_delays = std::strtoul(argv[1], nullptr, 10);
    random_orders = static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10));
  }
  test_what_is_published();
  test_updates_in_one_slot();
  test_an_update_of_one_block_needs_no_slot();
  test_values_in_the_slot_of_an_update();
  test_updates_in_slots_of_their_own();
  test_a_scalar_beside_an_update();
}
