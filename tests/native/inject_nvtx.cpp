// SPDX-License-Identifier: Apache-2.0
//
// An NVTX tool that writes down what it is told: one line a call into the file that NVTX_TEST_LOG
// names. NVTX loads it when NVTX_INJECTION64_PATH points to it.
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

int log_file = -1;

/// One write a line: threads do not mix theirs.
template <typename... Arguments>
void say(const char* format, Arguments... arguments) {
  char line[1024];
  const int length = std::snprintf(line, sizeof line, format, gettid(), arguments...);
  if (write(log_file, line, static_cast<size_t>(length)) != length) std::abort();
}

// Domains and registered strings are their own names.
template <typename Handle>
Handle handle_of(const char* name) {
  return reinterpret_cast<Handle>(new std::string(name));
}
template <typename Handle>
const char* name_of(Handle handle) {
  return reinterpret_cast<const std::string*>(handle)->c_str();
}

std::string describe(const nvtxEventAttributes_t* event) {
  const bool has_payload = event->payloadType == NVTX_PAYLOAD_TYPE_INT64;
  char text[512];
  std::snprintf(text, sizeof text, "%s %u %08x %s", name_of(event->message.registered),
                event->category, event->color,
                has_payload ? std::to_string(event->payload.llValue).c_str() : "-");
  return text;
}

nvtxDomainHandle_t NVTX_API domain_create(const char* name) {
  say("%d domain %s\n", name);
  return handle_of<nvtxDomainHandle_t>(name);
}
nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t, const char* text) {
  return handle_of<nvtxStringHandle_t>(text);
}
void NVTX_API name_category(nvtxDomainHandle_t domain, uint32_t category, const char* name) {
  say("%d category %s %u %s\n", name_of(domain), category, name);
}
void NVTX_API name_thread(uint32_t thread, const char* name) {
  say("%d thread %u %s\n", thread, name);
}
int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  say("%d push %s %s\n", name_of(domain), describe(event).c_str());
  return 0;
}
void NVTX_API mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  char value[32];
  std::snprintf(value, sizeof value, "%g", event->payload.dValue);
  say("%d mark %s %s %u %08x %s\n", name_of(domain), event->message.ascii, event->category,
      event->color, value);
}
int NVTX_API pop(nvtxDomainHandle_t domain) {
  say("%d pop %s\n", name_of(domain));
  return 0;
}
nvtxRangeId_t NVTX_API start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  static nvtxRangeId_t last = 0;
  const nvtxRangeId_t range = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  say("%d start %s %s %lu\n", name_of(domain), describe(event).c_str(),
      static_cast<unsigned long>(range));
  return range;
}
void NVTX_API end(nvtxDomainHandle_t domain, nvtxRangeId_t range) {
  say("%d end %s %lu\n", name_of(domain), static_cast<unsigned long>(range));
}

template <typename Function>
NvtxFunctionPointer as_pointer(Function* function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_export_table) {
  const char* path = std::getenv("NVTX_TEST_LOG");
  log_file = open(path != nullptr ? path : "", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_export_table(NVTX_ETID_CALLBACKS));
  if (log_file < 0 || callbacks == nullptr) return 0;
  NvtxFunctionTable core, core2;
  unsigned int size = 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &core, &size) ||
      !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &core2, &size))
    return 0;
  *core[NVTX_CBID_CORE_NameOsThreadA] = as_pointer(name_thread);
  *core2[NVTX_CBID_CORE2_DomainCreateA] = as_pointer(domain_create);
  *core2[NVTX_CBID_CORE2_DomainRegisterStringA] = as_pointer(register_string);
  *core2[NVTX_CBID_CORE2_DomainNameCategoryA] = as_pointer(name_category);
  *core2[NVTX_CBID_CORE2_DomainMarkEx] = as_pointer(mark);
  *core2[NVTX_CBID_CORE2_DomainRangePushEx] = as_pointer(push);
  *core2[NVTX_CBID_CORE2_DomainRangePop] = as_pointer(pop);
  *core2[NVTX_CBID_CORE2_DomainRangeStartEx] = as_pointer(start);
  *core2[NVTX_CBID_CORE2_DomainRangeEnd] = as_pointer(end);
  return 1;
}
