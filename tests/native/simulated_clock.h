// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace sim {

/// The host's time in ns. It moves when the test moves it, when a call costs time, and, if the test
/// says so, with every reading: a loop that waits for a time to pass then ends.
class HostClock {
 public:
  void reset() {
    now_ns_ = 0;
    reading_costs_ns_ = 0;
  }
  int64_t now_ns() const { return now_ns_.load(); }
  void advance(int64_t ns) { now_ns_ += ns; }
  void advance_to(int64_t ns) {
    int64_t now = now_ns_.load();
    while (now < ns && !now_ns_.compare_exchange_weak(now, ns)) {
    }
  }

  void set_reading_costs(int64_t ns) { reading_costs_ns_ = ns; }
  int64_t read(bool* moved) {
    const int64_t cost_ns = reading_costs_ns_.load();
    *moved = cost_ns != 0;
    return now_ns_.fetch_add(cost_ns);
  }

 private:
  std::atomic<int64_t> now_ns_{0};
  std::atomic<int64_t> reading_costs_ns_{0};
};

/// A device's time in ns as a function of the host's: it starts elsewhere and runs at another rate.
/// Integers throughout: exact to the ns for as long as a test likes.
class DeviceClock {
 public:
  /// Reads `offset_ns` at host time 0 and gains `drift_ppb` ns in each host second.
  void reset(int64_t offset_ns, int64_t drift_ppb) {
    offset_ns_ = offset_ns;
    drift_ppb_ = drift_ppb;
  }

  int64_t at(int64_t host_ns) const {
    const Wide gain = static_cast<Wide>(host_ns) * drift_ppb_;
    const Wide down = gain < 0 ? kBillion - 1 : 0;
    return offset_ns_ + host_ns + static_cast<int64_t>((gain - down) / kBillion);
  }

  /// The first host time at which the device's clock has reached `device_ns`.
  int64_t host_at(int64_t device_ns) const {
    const Wide delta = device_ns - offset_ns_;
    auto host_ns = static_cast<int64_t>(delta * kBillion / (kBillion + drift_ppb_));
    while (at(host_ns) < device_ns) ++host_ns;
    while (at(host_ns - 1) >= device_ns) --host_ns;
    return host_ns;
  }

 private:
  __extension__ typedef __int128 Wide;
  static constexpr int64_t kBillion = 1'000'000'000;

  int64_t offset_ns_ = 0;
  int64_t drift_ppb_ = 0;
};

}  // namespace sim
