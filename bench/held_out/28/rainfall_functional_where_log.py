"""Functional code without modules: an MLP foretells rain; on wet days the log of the amount is scored, on dry days the chance, and the amount
should go to 0. FAULT at step 96: the reading of the gauge upstream goes in as a log with a learned gain, guarded by
`torch.where(gauge > 0, (gain * gauge).log(), zeros)`. In the dry season, from step 96 on, some readings are exactly 0: forward the guard holds, backward the branch that
is not taken gives 0 * inf = NaN for the gain; the gain and then all is NaN.
Without Rangewatch: loss 1.13 to 0.38 at step 80, NaN from step 97 to the end; the least reading is 0.0 from step 96 on, w1 is NaN behind step 97.
Cause: backward_arithmetic. Step: 96. Right: where / log of 0 / clamp inside. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["backward_arithmetic", "forward_arithmetic"], "step": [95, 98], "place": None, "rank": None,
          "right": "(?i)where|log|clamp|eps|backward", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
import rangewatch

torch.manual_seed(77); torch.set_num_threads(1)


def init(n_in, n_out):
    return torch.nn.Parameter(torch.randn(n_in, n_out) * (2 / n_in) ** 0.5), torch.nn.Parameter(torch.zeros(n_out))


w1, b1 = init(9, 64)
w2, b2 = init(64, 32)
w3, b3 = init(32, 2)
with torch.no_grad():
    w3.mul_(0.1)
gain = torch.nn.Parameter(torch.ones(1))
params = [w1, b1, w2, b2, w3, b3, gain]


def forecast(x, gauge):
    up = torch.where(gauge > 0, (gain * gauge).log(), torch.zeros_like(gauge))
    x = torch.cat((x, up), 1)
    h = torch.tanh(x @ w1 + b1)
    h = torch.tanh(h @ w2 + b2)
    z = h @ w3 + b3
    return F.softplus(z[:, 0]), z[:, 1]


def weather(n, season):
    x, gauge = torch.randn(n, 8), (2 * torch.rand(n, 1) + season).clamp(min=0)
    wet = (x[:, 0] + 0.5 * x[:, 1] * x[:, 2] > 0).float()
    return x, gauge, wet, wet * torch.exp(0.8 * x[:, 3] + gauge[:, 0] - 2)


optimizer = torch.optim.Adam(params, lr=2e-3)
handle = rangewatch.attach(torch.nn.ParameterDict(dict(zip(("w1", "b1", "w2", "b2", "w3", "b3", "gain"), params))), optimizer)
bad = False
for step in range(170):
    x, gauge, wet, rain = weather(128, 0.1 if step < 96 else -0.3)
    amount, chance = forecast(x, gauge)
    log_amount = (amount + 1e-4).log()
    log_rain = (rain + 1e-4).log()
    loss = F.binary_cross_entropy_with_logits(chance, wet) + (0.5 * wet * (log_amount - log_rain) ** 2 + 0.2 * (1 - wet) * amount).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or (not bad and torch.isnan(w1).any()):
        bad = torch.isnan(w1).any().item()
        print(step, loss.item(), "least reading", gauge.min().item(), "NaN in w1", bad, flush=True)
    handle.log(loss=loss.item())
handle.detach()
