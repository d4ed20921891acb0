// SPDX-License-Identifier: Apache-2.0
//
// An NVRTC that compiles nothing: what it gives as code says what it was asked for. It knows
// devices up to 9.0. It refuses to compile where FAKE_NVRTC_FAILS is set, and crashes where it is
// "abort". Where FAKE_NVRTC_LATCH names a FIFO, it compiles once two have been opened for writing:
// that with ".reached" behind the name, then that one.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kSuccess = 0;
constexpr int kCompilation = 6;
constexpr int kArchitectures[] = {75, 80, 90};

struct FakeProgram {
  std::string text;
  std::string headers;
  std::string code;
};

int copy(const std::string& text, char* out) {
  std::memcpy(out, text.data(), text.size());
  return kSuccess;
}

}  // namespace

FAKE_EXPORT int nvrtcVersion(int* major, int* minor) {
  *major = 99;
  *minor = 1;
  return kSuccess;
}
FAKE_EXPORT const char* nvrtcGetErrorString(int) { return "NVRTC_ERROR_COMPILATION"; }
FAKE_EXPORT int nvrtcGetNumSupportedArchs(int* count) {
  *count = 3;
  return kSuccess;
}
FAKE_EXPORT int nvrtcGetSupportedArchs(int* architectures) {
  std::memcpy(architectures, kArchitectures, sizeof kArchitectures);
  return kSuccess;
}
FAKE_EXPORT int nvrtcCreateProgram(FakeProgram** program, const char* text, const char* name,
                                   int headers, const char* const*, const char* const* names) {
  *program = new FakeProgram{name, {}, {}};
  if (std::strstr(text, "__global__") == nullptr) (*program)->text += " without kernels";
  for (int i = 0; i < headers; ++i) (*program)->headers += std::string(" ") + names[i];
  return kSuccess;
}
FAKE_EXPORT int nvrtcCompileProgram(FakeProgram* program, int options, const char* const* texts) {
  if (const char* latch = std::getenv("FAKE_NVRTC_LATCH"))
    for (const std::string& name : {std::string(latch) + ".reached", std::string(latch)})
      if (std::FILE* fifo = std::fopen(name.c_str(), "r")) std::fclose(fifo);
  if (const char* fails = std::getenv("FAKE_NVRTC_FAILS")) {
    if (std::strcmp(fails, "abort") == 0) std::abort();
    return kCompilation;
  }
  program->code = program->text + program->headers;
  for (int i = 0; i < options; ++i) program->code += std::string(" ") + texts[i];
  return kSuccess;
}
FAKE_EXPORT int nvrtcDestroyProgram(FakeProgram** program) {
  delete *program;
  *program = nullptr;
  return kSuccess;
}
FAKE_EXPORT int nvrtcGetProgramLogSize(FakeProgram*, size_t* bytes) {
  *bytes = std::strlen("line 1\nline 2");
  return kSuccess;
}
FAKE_EXPORT int nvrtcGetProgramLog(FakeProgram*, char* log) { return copy("line 1\nline 2", log); }
FAKE_EXPORT int nvrtcGetCUBINSize(FakeProgram* program, size_t* bytes) {
  *bytes = program->code.size() + 6;
  return kSuccess;
}
FAKE_EXPORT int nvrtcGetCUBIN(FakeProgram* program, char* code) {
  return copy("cubin " + program->code, code);
}
FAKE_EXPORT int nvrtcGetPTXSize(FakeProgram* program, size_t* bytes) {
  *bytes = program->code.size() + 4;
  return kSuccess;
}
FAKE_EXPORT int nvrtcGetPTX(FakeProgram* program, char* code) {
  return copy("ptx " + program->code, code);
}
