/* Case 38: the header alone, twice, as the compiler is told, C or C++. */
#include "evenkeel.h"
#include "evenkeel.h"

int32_t use_header(ek_pool **pool, ek_worker_id *worker);

/* Uses that convert: constants to uint32_t, and status to int32_t. */
int32_t use_header(ek_pool **pool, ek_worker_id *worker)
{
    ek_pool_config pool_config;
    ek_tuning tuning;
    ek_worker_config config;
    ek_request request;
    int32_t status = ek_pool_config_init(&pool_config);

    if (status != EK_OK || ek_tuning_init(&tuning) != EK_OK)
        return EK_ERR_INVALID;
    if (ek_worker_config_init(&config) != EK_OK || ek_request_init(&request) != EK_OK)
        return EK_ERR_INVALID;
    tuning.policy = EK_POLICY_P2C_TOKENS;
    pool_config.tuning = &tuning;
    config.vetoes = EK_VETO_HOST | EK_VETO_OPERATOR;
    config.label = "10.0.0.1:30000@3";
    request.policy = EK_POLICY_DEFAULT;
    request.candidate_count = EK_ALL;
    status = ek_pool_new(&pool_config, pool);
    switch (status) {
    case EK_OK:
        break;
    case EK_ERR_IO:
    default:
        return status;
    }
    status = ek_pool_ensure(*pool, ek_key(config.label), &config, worker);
    if (status == EK_OK)
        status = ek_pool_update(*pool, *worker, EK_FIELD_WEIGHT | EK_FIELD_LABEL, &config);
    return status == EK_OK ? ek_pool_pick(*pool, &request, worker) : status;
}
