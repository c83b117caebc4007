"""Vector quantizer with Gumbel softmax between an encoder and a decoder of spectra, as in speech pretraining. 140 steps in float32, then bf16
autocast. FAULT at step 140: the noise is drawn in the logits' type, and in bfloat16 one uniform number in 256 is exactly 0, so that the exponential
sample is 0 and its log -inf: the Gumbel noise is Inf and the softmax NaN. Report: pytorch/pytorch#22442 and #20179 (exponential_() may give 0),
pytorch/pytorch#34372. Cause: forward_arithmetic, step 140, in `quantizer`. Right: log of 0. Wrong: learning rate, mask, data."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [140, 140], "place": "quantizer(\\..*)?", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "leave out samples"], "right": "\\blog\\b|logarithm|float32|softmax"}
import contextlib
import torch
import torch.nn as nn
import rangewatch

torch.manual_seed(3)
torch.set_num_threads(1)


def exponential_like(x):
    return -torch.log1p(-torch.rand_like(x))


class Quantizer(nn.Module):
    def __init__(self, dim, codes, groups):
        super().__init__()
        self.groups, self.codes = groups, codes
        self.to_logits = nn.Linear(dim, groups * codes)
        self.book = nn.Parameter(torch.randn(groups, codes, dim // groups) * 0.3)

    def forward(self, h, tau):
        logits = self.to_logits(h).unflatten(-1, (self.groups, self.codes))
        noise = -exponential_like(logits).log()
        soft = ((logits + noise) / tau).softmax(-1)
        hard = torch.zeros_like(soft).scatter(-1, soft.argmax(-1, keepdim=True), 1.0)
        choice = hard - soft.detach() + soft
        return torch.einsum("btgc,gcd->btgd", choice, self.book.to(choice.dtype)).flatten(-2)


class Codec(nn.Module):
    def __init__(self, bands=24, dim=48):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(bands, dim), nn.GELU(), nn.Linear(dim, dim), nn.LayerNorm(dim))
        self.quantizer = Quantizer(dim, codes=16, groups=4)
        self.decoder = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, bands))

    def forward(self, x, tau):
        return self.decoder(self.quantizer(self.encoder(x), tau))


phones = torch.randn(20, 24)
model = Codec()
optim = torch.optim.Adam(model.parameters(), lr=2e-3)
watcher = rangewatch.attach(model, optim)
for it in range(230):
    x = phones[torch.randint(0, 20, (16, 12))] + 0.2 * torch.randn(16, 12, 24)
    amp = torch.autocast("cpu", torch.bfloat16) if it >= 140 else contextlib.nullcontext()
    with amp:
        out = model(x, tau=max(0.5, 2.0 * 0.99 ** it))
    loss = (out.float() - x).pow(2).mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
    watcher.log(loss=loss.item())
    if it % 20 == 0 or 138 <= it < 143:
        print(it, loss.item())
