// SPDX-License-Identifier: Apache-2.0
#include "record/span_record.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace pig {
namespace {

/// Of a path in a sentence.
constexpr size_t kMaxPathParts = 8;

}  // namespace

ThreadState* SpanRecord::attach(uint32_t epoch, std::string thread_name) {
  return threads_.attach({&paths_, drops_, &overflow_, wake_harvester}, epoch,
                         {static_cast<uint64_t>(gettid()), std::move(thread_name)});
}

std::string SpanRecord::path_text(uint32_t path) const {
  const std::vector<PathTable::Path> paths = paths_.since(0);
  std::string text;
  for (size_t parts = 0; path < paths.size() && parts < kMaxPathParts; ++parts) {
    text = PhaseTable::instance().name(paths[path].phase) + (text.empty() ? "" : "/") + text;
    path = paths[path].parent;
  }
  return text;
}

void SpanRecord::reset(const Session& session) {
  clock_ = &session.clock;
  drops_ = &session.drops;
  paths_.reset();
  threads_.reset();
  overflow_.reset(session.clock, session.drops);
  statistics_.clear();
  recorded_ = spans_counted_ = 0;
  has_overflowed_ = false;
}

void SpanRecord::take(Harvest& harvest) {
  items_.clear();
  pin_events_in_use();
  for (ThreadState* thread : threads_.states()) drain(*thread, harvest.log);
  take_open_frames(harvest);
}

void SpanRecord::pin_events_in_use() {
  if (!cuda::DeviceTiming::instance().attached()) return;  // no frame has an event
  device_times_.begin();
  std::vector<OpenFrame> frames;
  std::vector<cuda::EventRef> events;
  for (const ThreadState* thread : threads_.states()) {
    // First: what it has been replaced by then, stands in a frame or a span already.
    device_times_.pin(thread->event_in_hand());
    thread->copy_open(frames);
    if (ModuleStack* modules = thread->modules()) modules->copy_events(events);
  }
  for (const OpenFrame& frame : frames) device_times_.pin(frame.event);
  for (const cuda::EventRef event : events) device_times_.pin(event);
}

void SpanRecord::drain(ThreadState& thread, const RunLog& log) {
  // Before the ring is read: what the thread wrote before it ended is then seen.
  const bool finished = thread.finished.load(std::memory_order_acquire);
  if (finished) thread.run_requests();
  raw_.clear();
  events_.clear();
  thread.ring().drain(raw_, events_);
  size_t folded = 0;
  const bool fits = try_allocating([&] {
    items_.reserve(items_.size() + raw_.size());
    auto events = events_.begin();
    for (const RawSpan& span : raw_) {
      const NanosecondSpan times = to_nanoseconds(*clock_, span);
      statistics_.fold(span, times);
      ++folded;
      items_.push_back({times.begin, times.end, times.self, span.step(), span.path(),
                        thread.serial(), static_cast<uint16_t>(span.depth()), span.flags()});
      if ((span.flags() & kDeviceTimed) == 0) continue;
      if (cuda::is_stamp(events->begin) || cuda::is_stamp(events->end)) {
        // It took place in no step: its graph is replayed later.
        items_.back().flags &= static_cast<uint16_t>(~kDeviceTimed);
        graph_phases_.add(span.path(), events->begin, events->end);
      } else {
        device_times_.add({log.items(BlockType::kSpans) + items_.size() - 1, events->begin,
                           events->end, span.step(), span.path(), span.flags()});
      }
      ++events;
    }
  });
  if (!fits) drops_->add(Drop::kNoMemory, raw_.size() - folded);
  recorded_ += folded;
  if (!finished) return;
  std::vector<OpenFrame> left_open;
  thread.copy_open(left_open);
  drops_->add(Drop::kOpenAtThreadEnd, left_open.size());
  threads_.retire(&thread);
}

void SpanRecord::take_open_frames(Harvest& harvest) const {
  std::vector<OpenFrame> frames;
  for (const ThreadState* thread : threads_.states()) {
    frames.clear();
    thread->copy_open(frames);
    for (const OpenFrame& frame : frames) {
      const int64_t begin_ns = clock_->to_ns(frame.begin);
      if (begin_ns > harvest.state.now_ns) {
        harvest.is_whole = false;
      } else {
        harvest.state.open.push_back(
            {thread->serial(), frame.path, begin_ns, frame.step, frame.depth});
      }
    }
  }
}

void SpanRecord::drain(Harvest& harvest) {
  write_copy(harvest.log, Copy::kTables);
  harvest.log.append(items_);
  const uint64_t overflowed = overflow_.take(statistics_);
  harvest.is_urgent |= overflowed != 0;
  has_overflowed_ |= overflowed != 0;
  harvest.state.phases_recorded = recorded_ += overflowed;
}

void SpanRecord::write_copy(RunLog& log, Copy) {
  for (const PathTable::Path& path : paths_.since(log.entries(BlockType::kPaths)))
    log.append_path(path);
  for (const ThreadInfo& thread : threads_.infos_since(log.entries(BlockType::kThreads)))
    log.append_entry(BlockType::kThreads, thread.native_id, thread.name);
}

void SpanRecord::write_statistics(RunLog& log, bool is_due) {
  if (!is_due) return;
  std::vector<uint8_t> document;
  for (const BlockType type : {BlockType::kSpans, BlockType::kSteps, BlockType::kDeviceTimes})
    put(document, log.items(type));
  statistics_.encode(document);
  log.write_document(BlockType::kStatistics, document);
  spans_counted_ = log.items(BlockType::kSpans);
  has_overflowed_ = false;
}

}  // namespace pig
