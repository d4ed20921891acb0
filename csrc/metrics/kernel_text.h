// SPDX-License-Identifier: Apache-2.0
//
// The kernels as text: metric_kernel.cu and what it includes, as kernel_text.S embeds them.
#pragma once

extern "C" {
#define PIG_EMBEDDED(name) extern const char name[] __attribute__((visibility("hidden")))
PIG_EMBEDDED(pig_metric_kernel_cu);
PIG_EMBEDDED(pig_kernel_elements_cuh);
PIG_EMBEDDED(pig_kernel_row_cuh);
PIG_EMBEDDED(pig_kernel_finish_cuh);
PIG_EMBEDDED(pig_metric_kernel_h);
PIG_EMBEDDED(pig_binary_totals_h);
PIG_EMBEDDED(pig_element_batch_h);
PIG_EMBEDDED(pig_metric_state_h);
PIG_EMBEDDED(pig_regression_totals_h);
PIG_EMBEDDED(pig_row_values_h);
PIG_EMBEDDED(pig_state_fields_h);
PIG_EMBEDDED(pig_value_totals_h);
#undef PIG_EMBEDDED
}
