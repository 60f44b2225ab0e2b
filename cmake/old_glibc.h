/* Included before every file that narrowcast._C is linked from, so that it loads on an older glibc
   than this one (NARROWCAST_MANYLINUX). glibc 2.34 moved these functions to libc.so, with new
   versions; the versions of before are there too. */
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlclose,dlclose@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver dlerror,dlerror@GLIBC_2.2.5");
__asm__(".symver pthread_once,pthread_once@GLIBC_2.2.5");

/* Of glibc 2.32: by it std::shared_ptr spares a process of one thread its atomic operations. */
extern "C" {
__attribute__((weak, visibility("hidden"))) char __libc_single_threaded = 0;
}
