/* base/version.h - the version of this program, in one place. */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H

#define CAIRN_VERSION "0.1.0"
#endif
