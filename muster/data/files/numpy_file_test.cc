#include "muster/data/files/numpy_file.h"

#include <absl/strings/escaping.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "muster/base/status.h"
#include "muster/io/test_files.h"

namespace muster::numpy_file_test {

using ::muster::testing_support::caught;
using ::muster::testing_support::ScopedDirectory;
using ::muster::testing_support::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Arrays = std::vector<std::pair<std::string, at::Tensor>>;

// The files below are what numpy 2.4.6 writes.
// numpy.save of float32 [[1.5, -2, 3], [4, 5, 6]].
constexpr const char* kFloats =
    "k05VTVBZAQB2AHsnZGVzY3InOiAnPGY0JywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDIsIDMpLCB9ICAgICAgICAgICAg"
    "ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoAAMA/AAAAwAAAQEAAAIBAAACgQAAAwEA=";
// Format 3.0: [[1, 2, 3], [-4, 5, 60000]] of ">i4", in Fortran order.
constexpr const char* kBigEndianFortran =
    "k05VTVBZAwB0AAAAeydkZXNjcic6ICc+aTQnLCAnZm9ydHJhbl9vcmRlcic6IFRydWUsICdzaGFwZSc6ICgyLCAzKSwgfSAgICAgICAgICAg"
    "ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAoAAAAB/////AAAAAIAAAAFAAAAAwAA6mA=";
// numpy.save of ["ab", "c"].
constexpr const char* kWords =
    "k05VTVBZAQB2AHsnZGVzY3InOiAnPFUyJywgJ2ZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDIsKSwgfSAgICAgICAgICAgICAg"
    "ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIAphAAAAYgAAAGMAAAAAAAAA";
// numpy.savez(w=float32 [[1, 2], [3, 4]], n=int64 7).
constexpr const char* kStored =
    "UEsDBC0AAAAAAAAAIQBO+yB1//////////8FABQAdy5ucHkBABAAkAAAAAAAAACQAAAAAAAAAJNOVU1QWQEAdgB7J2Rlc2NyJzogJzxmNCcs"
    "ICdmb3J0cmFuX29yZGVyJzogRmFsc2UsICdzaGFwZSc6ICgyLCAyKSwgfSAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAg"
    "ICAgICAgICAgICAgICAgICAgICAKAACAPwAAAEAAAEBAAACAQFBLAwQtAAAAAAAAACEAI7jwbP//////////BQAUAG4ubnB5AQAQAIgAAAAA"
    "AAAAiAAAAAAAAACTTlVNUFkBAHYAeydkZXNjcic6ICc8aTgnLCAnZm9ydHJhbl9vcmRlcic6IEZhbHNlLCAnc2hhcGUnOiAoKSwgfSAgICAg"
    "ICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgCgcAAAAAAAAAUEsBAi0DLQAAAAAAAAAh"
    "AE77IHWQAAAAkAAAAAUAAAAAAAAAAAAAAIABAAAAAHcubnB5UEsBAi0DLQAAAAAAAAAhACO48GyIAAAAiAAAAAUAAAAAAAAAAAAAAIABxwAA"
    "AG4ubnB5UEsFBgAAAAACAAIAZgAAAIYBAAAAAA==";
// numpy.savez_compressed of the same and c = [1 + 2j] of ">c16".
constexpr const char* kDeflated =
    "UEsDBC0AAAAIAAAAIQBO+yB1//////////8FABQAdy5ucHkBABAAkAAAAAAAAABTAAAAAAAAAJvsF+obEMnIUMZQrZ6SWpxcpG6loG6TZqKu"
    "o6Cell9UUpSYF59flJIKEndLzClOBYoXZyQWpAL5GkY6CkaaOgq1CmQDLgaGBnsGBgYHIALiBgcAUEsDBC0AAAAIAAAAIQAjuPBs////////"
    "//8FABQAbi5ucHkBABAAiAAAAAAAAABGAAAAAAAAAJvsF+obEMnIUMZQrZ6SWpxcpG6loG6TaaGuo6Cell9UUpSYF59flJIKEndLzClOBYoX"
    "ZyQWpAL5Gpo6CrUKFAEudgYIAABQSwMELQAAAAgAAAAhAD4u/9z//////////wUAFABjLm5weQEAEACQAAAAAAAAAE0AAAAAAAAAm+wX6hsQ"
    "ychQxlCtnpJanFykbqWgbpdsaKauo6Cell9UUpSYF59flJIKknBLzClOBYoXZyQWpAL5GoY6mjoKtQrkAy77Dwxg4AChGABQSwECLQMtAAAA"
    "CAAAACEATvsgdVMAAACQAAAABQAAAAAAAAAAAAAAgAEAAAAAdy5ucHlQSwECLQMtAAAACAAAACEAI7jwbEYAAACIAAAABQAAAAAAAAAAAAAA"
    "gAGKAAAAbi5ucHlQSwECLQMtAAAACAAAACEAPi7/3E0AAACQAAAABQAAAAAAAAAAAAAAgAEHAQAAYy5ucHlQSwUGAAAAAAMAAwCZAAAAiwEA"
    "AAAA";

std::string bytes_from(const char* base64) {
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(base64, &bytes));
  return bytes;
}

template <class T>
std::vector<T> values_in(const at::Tensor& tensor) {
  EXPECT_TRUE(tensor.is_contiguous());
  const T* begin = tensor.const_data_ptr<T>();
  return {begin, begin + tensor.numel()};
}

std::string npy_of(const std::string& header, const std::string& data, char major = 1) {
  std::string bytes = std::string("\x93NUMPY") + major + '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + data;
}

std::string npy_header(const std::string& descr, const std::string& shape, const char* fortran = "False") {
  return str_cat("{'descr': '", descr, "', 'fortran_order': ", fortran, ", 'shape': ", shape, ", }\n");
}

template <class Number>
void put(std::string& bytes, size_t at, Number number) {
  ASSERT_LE(at + sizeof(number), bytes.size());
  std::memcpy(bytes.data() + at, &number, sizeof(number));
}

class NumpyFile : public ::testing::Test {
 protected:
  at::Tensor npy(const std::string& bytes) {
    write_file(path(), bytes);
    return read_npy(path());
  }
  Arrays npz(const std::string& bytes) {
    write_file(path(), bytes);
    return read_npz(path());
  }
  Status npy_error(const std::string& bytes) {
    return caught([&] { npy(bytes); });
  }
  Status npz_error(const std::string& bytes) {
    return caught([&] { npz(bytes); });
  }
  std::string path() const { return directory_.path("a"); }

 private:
  ScopedDirectory directory_;
};

TEST_F(NumpyFile, ReadsWhatNumpySaves) {
  const at::Tensor tensor = npy(bytes_from(kFloats));

  EXPECT_EQ(tensor.scalar_type(), at::kFloat);
  EXPECT_THAT(tensor.sizes().vec(), ElementsAre(2, 3));
  EXPECT_THAT(values_in<float>(tensor), ElementsAre(1.5f, -2, 3, 4, 5, 6));
}

TEST_F(NumpyFile, TurnsTheOtherOrdersOfBytesAndDimensionsIntoItsOwn) {
  const at::Tensor tensor = npy(bytes_from(kBigEndianFortran));

  EXPECT_EQ(tensor.scalar_type(), at::kInt);
  EXPECT_THAT(tensor.sizes().vec(), ElementsAre(2, 3));
  EXPECT_THAT(values_in<int32_t>(tensor), ElementsAre(1, 2, 3, -4, 5, 60000));
}

TEST_F(NumpyFile, ReadsEveryElementTypeInBothOrdersOfBytes) {
  struct Known {
    const char* descr;
    at::ScalarType type;
    size_t bytes, part;
  };
  const Known known[] = {{"i1", at::kChar, 1, 1},           {"u1", at::kByte, 1, 1},   {"i2", at::kShort, 2, 2},
                         {"u2", at::kUInt16, 2, 2},         {"i4", at::kInt, 4, 4},    {"u4", at::kUInt32, 4, 4},
                         {"i8", at::kLong, 8, 8},           {"u8", at::kUInt64, 8, 8}, {"f2", at::kHalf, 2, 2},
                         {"f4", at::kFloat, 4, 4},          {"f8", at::kDouble, 8, 8}, {"c8", at::kComplexFloat, 8, 4},
                         {"c16", at::kComplexDouble, 16, 8}};
  for (const auto& [descr, type, bytes, part] : known) {
    std::string data;
    for (size_t i = 0; i < 6 * bytes; ++i) data += static_cast<char>(i + 1);
    std::string swapped = data;
    for (size_t i = 0; i < data.size(); i += part) std::reverse(swapped.begin() + i, swapped.begin() + i + part);

    const at::Tensor little = npy(npy_of(npy_header(std::string("<") + descr, "(2, 3)"), data));
    const at::Tensor big = npy(npy_of(npy_header(std::string(">") + descr, "(2, 3)"), swapped));
    const at::Tensor fortran = npy(npy_of(npy_header(std::string("<") + descr, "(2, 3)", "True"), data, 2));

    for (const at::Tensor& tensor : {little, big, fortran}) {
      EXPECT_EQ(tensor.scalar_type(), type) << descr;
      EXPECT_THAT(tensor.sizes().vec(), ElementsAre(2, 3));
      ASSERT_TRUE(tensor.is_contiguous());
      ASSERT_EQ(tensor.nbytes(), data.size());
    }
    EXPECT_EQ(std::memcmp(little.const_data_ptr(), data.data(), data.size()), 0) << descr;
    EXPECT_EQ(std::memcmp(big.const_data_ptr(), data.data(), data.size()), 0) << descr;
    const std::string first_row = data.substr(0, bytes) + data.substr(2 * bytes, bytes) + data.substr(4 * bytes, bytes);
    EXPECT_EQ(std::memcmp(fortran.const_data_ptr(), first_row.data(), first_row.size()), 0) << descr;
  }
}

TEST_F(NumpyFile, TakesEveryByteButZeroForTrue) {
  const at::Tensor tensor = npy(npy_of(npy_header("|b1", "(3,)"), std::string("\0\1\x80", 3)));

  EXPECT_EQ(tensor.scalar_type(), at::kBool);
  uint8_t bytes[3];
  std::memcpy(bytes, tensor.const_data_ptr(), 3);
  EXPECT_THAT(bytes, ElementsAre(0, 1, 1));
}

TEST_F(NumpyFile, ReadsAHeaderInEveryFormThatPythonWouldWrite) {
  const std::string data(8, '\0');

  EXPECT_THAT(npy(npy_of("{'shape':(),'descr':\"<i8\",\"fortran_order\":False}", data)).sizes().vec(), IsEmpty());
  EXPECT_THAT(npy(npy_of(" { 'fortran_order' : True , 'shape' : ( 1 , ) , 'descr' : '=i8' } \n", data)).sizes().vec(),
              ElementsAre(1));
  EXPECT_THAT(npy(npy_of(npy_header("<i8", "(1, 1, 1)"), data, 3)).sizes().vec(), ElementsAre(1, 1, 1));
  EXPECT_THAT(npy(npy_of(npy_header("<i8", "(5, 0, 2)"), "")).sizes().vec(), ElementsAre(5, 0, 2));
}

TEST_F(NumpyFile, RefusesAHeaderThatIsNotAsTheFormatSays) {
  const std::string data(8, '\0');
  const std::string wrong[] = {
      "",
      "{",
      "{}",
      "[]",
      "{'descr': '<i8', 'fortran_order': False}",
      "{'descr': '<i8', 'fortran_order': False, 'shape': (1,), 'more': 1}",
      "{'descr': '<i8', 'descr': '<i8', 'fortran_order': False, 'shape': (1,)}",
      "{'descr': '<i8', 'fortran_order': False, 'shape': (1,)} x",
      "{'descr': '<i8' 'fortran_order': False, 'shape': (1,)}",
      "{'descr': <i8, 'fortran_order': False, 'shape': (1,)}",
      "{'descr': '<\\x698', 'fortran_order': False, 'shape': (1,)}",
      "{'descr': '<i8', 'fortran_order': 0, 'shape': (1,)}",
      npy_header("<i8", "1"),
      npy_header("<i8", "(1)"),
      npy_header("<i8", "(1,"),
      npy_header("<i8", "(,)"),
      npy_header("<i8", "(1 1)"),
      npy_header("<i8", "(-1, -1)"),
      npy_header("<i8", "(-0,)"),
      npy_header("<i8", "(1.0,)"),
      npy_header("<i8", "(9223372036854775808,)"),
      "{'shape': (" + std::string(60'000, ' '),
  };
  for (const std::string& header : wrong) {
    const Status status = npy_error(npy_of(header, data));

    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << header;
    EXPECT_THAT(status.message(), HasSubstr(str_cat("file \"", path(), "\": header: at byte "))) << header;
  }
  std::string many;
  for (int i = 0; i < 65; ++i) many += "1,";
  EXPECT_THAT(npy_error(npy_of(npy_header("<i8", "(" + many + ")"), data)).message(), HasSubstr("64 dimensions"));
}

TEST_F(NumpyFile, RefusesDataOfAnotherLengthThanTheShapeBeforeItAsksForMemory) {
  const std::string data(24, '\0');

  const Status status = npy_error(npy_of(npy_header("<i8", "(2, 2)"), data));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("24 bytes of data, expected 32 for shape [2, 2] of 8-byte elements"));
  for (const char* shape : {"(2,)", "(4611686018427387904,)", "(4611686018427387904, 4)", "(1099511627776, 100)",
                            "(0, 9223372036854775807)", "()", "(0,)"}) {
    EXPECT_EQ(npy_error(npy_of(npy_header("<i8", shape), data)).code(), StatusCode::kDataLoss) << shape;
  }
}

TEST_F(NumpyFile, NamesFileAndTypeOfArraysThatNoTensorCanHold) {
  const Status words = npy_error(bytes_from(kWords));
  EXPECT_EQ(words.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(words.message(), HasSubstr(str_cat("file \"", path(), "\": dtype '<U2'")));

  for (const char* descr : {"|O", "|S2", "<M8[s]", "<f16", "<c32", "|V2", "|i4", "i4", "<i3", "?i4", "", "<i44"}) {
    const Status status = npy_error(npy_of(npy_header(descr, "(2,)"), std::string(8, '\0')));
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << descr;
    EXPECT_THAT(status.message(), HasSubstr(str_cat("dtype '", descr, "'")));
  }
  const std::string fields = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }";
  EXPECT_EQ(npy_error(npy_of(fields, std::string(8, '\0'))).code(), StatusCode::kUnimplemented);
}

TEST_F(NumpyFile, RefusesWhatIsNoNpy) {
  const std::string whole = bytes_from(kFloats);

  EXPECT_EQ(npy_error("").code(), StatusCode::kDataLoss);
  EXPECT_EQ(npy_error("a text that is long enough").code(), StatusCode::kDataLoss);
  EXPECT_EQ(npy_error(npy_of(npy_header("<i8", "(1,)"), std::string(8, '\0'), 4)).code(), StatusCode::kUnimplemented);
  EXPECT_EQ(npy_error(whole + "x").code(), StatusCode::kDataLoss);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(npy_error(whole.substr(0, size)).code(), StatusCode::kDataLoss) << size;
  }
  EXPECT_EQ(caught([] { read_npy("/nowhere/a.npy"); }).code(), StatusCode::kNotFound);
}

TEST_F(NumpyFile, ReadsAnArchiveOfStoredArrays) {
  const Arrays arrays = npz(bytes_from(kStored));

  ASSERT_EQ(arrays.size(), 2u);
  EXPECT_EQ(arrays[0].first, "w");
  EXPECT_THAT(arrays[0].second.sizes().vec(), ElementsAre(2, 2));
  EXPECT_THAT(values_in<float>(arrays[0].second), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(arrays[1].first, "n");
  EXPECT_THAT(arrays[1].second.sizes().vec(), IsEmpty());
  EXPECT_THAT(values_in<int64_t>(arrays[1].second), ElementsAre(7));
}

TEST_F(NumpyFile, ReadsAnArchiveOfDeflatedArrays) {
  const Arrays arrays = npz(bytes_from(kDeflated));

  ASSERT_EQ(arrays.size(), 3u);
  EXPECT_THAT(values_in<float>(arrays[0].second), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values_in<int64_t>(arrays[1].second), ElementsAre(7));
  EXPECT_EQ(arrays[2].first, "c");
  EXPECT_THAT(values_in<c10::complex<double>>(arrays[2].second), ElementsAre(c10::complex<double>(1, 2)));
}

TEST_F(NumpyFile, ReadsAnArchiveWithACommentAndOneWithoutArrays) {
  std::string commented = bytes_from(kStored);
  put<uint16_t>(commented, commented.size() - 2, 26);
  commented += "PK\5\6 is how an end begins.";

  EXPECT_EQ(npz(commented).size(), 2u);
  EXPECT_THAT(npz(std::string("PK\5\6") + std::string(18, '\0')), IsEmpty());
}

// Where the list of the archive and its end stand in kStored.
constexpr size_t kList = 0x186, kListBytes = 0x66, kEnd = kList + kListBytes, kSecondEntry = kList + kListBytes / 2;

// kStored with all that zip64 has: sizes and place of the first entry, the end record and its locator.
std::string zip64_archive() {
  std::string bytes = bytes_from(kStored);
  std::string first = bytes.substr(kList, kListBytes / 2), second = bytes.substr(kSecondEntry, kListBytes / 2);
  for (const size_t at : {20, 24, 42}) put<uint32_t>(first, at, 0xffffffff);
  put<uint16_t>(first, 30, 9 + 28);  // an extra field of somebody else comes first
  std::string extra("\x34\x12\5\0other\1\0\x18\0", 13);
  extra.resize(9 + 28);
  put<uint64_t>(extra, 13, 144);
  put<uint64_t>(extra, 21, 144);
  put<uint64_t>(extra, 29, 0);
  const std::string list = first + extra + second;
  std::string end64(56, '\0'), locator(20, '\0'), end(22, '\0');
  end64.replace(0, 4, "PK\6\6");
  put<uint64_t>(end64, 4, 44);
  put<uint64_t>(end64, 24, 2);
  put<uint64_t>(end64, 32, 2);
  put<uint64_t>(end64, 40, list.size());
  put<uint64_t>(end64, 48, kList);
  locator.replace(0, 4, "PK\6\7");
  put<uint64_t>(locator, 8, kList + list.size());
  put<uint32_t>(locator, 16, 1);
  end.replace(0, 4, "PK\5\6");
  for (const size_t at : {8, 10}) put<uint16_t>(end, at, 0xffff);
  for (const size_t at : {12, 16}) put<uint32_t>(end, at, 0xffffffff);
  return bytes.substr(0, kList) + list + end64 + locator + end;
}

TEST_F(NumpyFile, ReadsAnArchiveInZip64) {
  const Arrays arrays = npz(zip64_archive());

  ASSERT_EQ(arrays.size(), 2u);
  EXPECT_THAT(values_in<float>(arrays[0].second), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values_in<int64_t>(arrays[1].second), ElementsAre(7));
}

TEST_F(NumpyFile, NamesTheEntryWhoseChecksumIsWrong) {
  std::string stored = bytes_from(kStored), deflated = bytes_from(kDeflated);
  stored[kList - 8] ^= 1;                  // the 7
  put<uint32_t>(deflated, 0x18b + 16, 1);  // the first sum in the list

  const Status of_stored = npz_error(stored), of_deflated = npz_error(deflated);

  EXPECT_EQ(of_stored.code(), StatusCode::kDataLoss);
  EXPECT_THAT(of_stored.message(), HasSubstr(str_cat("file \"", path(), "\": entry \"n.npy\": CRC-32 ")));
  EXPECT_THAT(of_stored.message(), HasSubstr("expected 6cf0b823"));
  EXPECT_THAT(of_deflated.message(), HasSubstr("entry \"w.npy\": CRC-32 7520fb4e, expected 00000001"));
}

TEST_F(NumpyFile, RefusesAnArchiveThatItCannotRead) {
  std::string encrypted = bytes_from(kStored), bzip2 = encrypted, parts = encrypted;
  put<uint16_t>(encrypted, kSecondEntry + 8, 1);
  put<uint16_t>(bzip2, kSecondEntry + 10, 12);
  put<uint16_t>(parts, kEnd + 4, 1);

  EXPECT_EQ(npz_error(encrypted).code(), StatusCode::kUnimplemented);
  EXPECT_THAT(npz_error(encrypted).message(), HasSubstr("entry \"n.npy\": is encrypted"));
  EXPECT_EQ(npz_error(bzip2).code(), StatusCode::kUnimplemented);
  EXPECT_THAT(npz_error(bzip2).message(), HasSubstr("entry \"n.npy\": is packed by method 12"));
  EXPECT_EQ(npz_error(parts).code(), StatusCode::kUnimplemented);
}

TEST_F(NumpyFile, RefusesAnArchiveThatSaysWhatCannotBe) {
  const std::string whole = bytes_from(kStored), deflated = bytes_from(kDeflated);
  const auto message = [&](std::string bytes, size_t at, auto number) {
    put(bytes, at, number);
    const Status status = npz_error(bytes);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    return status.message();
  };

  EXPECT_THAT(npz_error("no archive").message(), HasSubstr("is no zip archive"));
  EXPECT_THAT(message(whole, kEnd + 16, uint32_t{0xfffffff0}), HasSubstr("does not fit before its end"));
  EXPECT_THAT(message(whole, kEnd + 12, uint32_t{0xfffffff0}), HasSubstr("does not fit before its end"));
  EXPECT_THAT(message(whole, kEnd + 8, uint32_t{0x1'0001}), HasSubstr("more than the 1 entries"));
  EXPECT_THAT(message(whole, kEnd + 8, uint32_t{0xfff0'fff0}), HasSubstr("65520 entries"));
  EXPECT_THAT(message(whole, kList + 28, uint16_t{0xffff}), HasSubstr("entry 1 goes beyond"));
  EXPECT_THAT(message(whole, kList, uint32_t{0}), HasSubstr("entry 1 of the archive's list is damaged"));
  EXPECT_THAT(message(whole, kList + 24, uint32_t{145}), HasSubstr("entry \"w.npy\": 145 bytes cannot be in the 144"));
  EXPECT_THAT(message(whole, kList + 42, uint32_t{0x7fffffff}), HasSubstr("begins at 2147483647"));
  EXPECT_THAT(message(whole, kList + 42, uint32_t{5}), HasSubstr("there is no entry of this name at 5"));
  EXPECT_THAT(message(whole, kSecondEntry + 46, 'w'), HasSubstr("there is no entry of this name"));
  EXPECT_THAT(message(deflated, 0x18b + 24, uint32_t{200'000}), HasSubstr("200000 bytes cannot be in the 83"));
  EXPECT_THAT(message(deflated, 0x18b + 24, uint32_t{80'000}), HasSubstr("79872 bytes of data, expected 16"));
  EXPECT_THAT(message(deflated, 0x18b + 24, uint32_t{143}), HasSubstr("15 bytes of data, expected 16"));
  EXPECT_THAT(message(deflated, 0x18b + 20, uint32_t{70}), HasSubstr("less data than the archive says"));
  EXPECT_THAT(message(deflated, 0x18b + 20, uint32_t{82}), HasSubstr("ends elsewhere"));
  EXPECT_THAT(message(deflated, 0x18b + 20, uint32_t{84}), HasSubstr("ends elsewhere"));
}

TEST_F(NumpyFile, RefusesEntriesThatShareTheirData) {
  std::string bytes = bytes_from(kStored);
  bytes.replace(kSecondEntry, kListBytes / 2, bytes.substr(kList, kListBytes / 2));

  EXPECT_THAT(npz_error(bytes).message(), HasSubstr("where something else begins"));
}

TEST_F(NumpyFile, RefusesTwoArraysOfOneName) {
  std::string bytes = bytes_from(kStored);
  bytes[kSecondEntry + 46] = 'w';
  bytes[0xc7 + 30] = 'w';

  EXPECT_THAT(npz_error(bytes).message(), HasSubstr("entry \"w.npy\": the name is there twice"));
}

TEST_F(NumpyFile, TakesAnyDamageWithoutHarm) {
  size_t wrong = 0;
  for (const std::string& whole : {bytes_from(kStored), bytes_from(kDeflated), zip64_archive()}) {
    for (size_t size = 0; size < whole.size(); ++size) {
      EXPECT_EQ(npz_error(whole.substr(0, size)).code(), StatusCode::kDataLoss) << size;
    }
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const char mask : {'\x01', '\x80', '\xff'}) {
        std::string damaged = whole;
        damaged[at] ^= mask;
        wrong += !npz_error(damaged).ok();
      }
    }
  }
  const std::string header = bytes_from(kBigEndianFortran);
  for (size_t at = 0; at < 128; ++at) {
    for (int value = 0; value < 256; value += 5) {
      std::string damaged = header;
      damaged[at] = static_cast<char>(value);
      wrong += !npy_error(damaged).ok();
    }
  }

  EXPECT_GT(wrong, 5000u);
}

}  // namespace muster::numpy_file_test
