#pragma once

namespace muster {

// Lets a unique_ptr own an object of OpenSSL: std::unique_ptr<BIO, FreedBy<BIO_free_all>>.
template <auto free>
struct FreedBy {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};

}  // namespace muster
