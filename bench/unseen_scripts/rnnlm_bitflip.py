"""LSTM language model with tied embedding, truncated BPTT, SGD with clipping. FAULT at step 160: one exponent bit of one element of
the tied matrix flips (about 0.05 -> 1e37 or so). Cause: weight, step 160, place encoder/decoder weight.
Right: the weight changed between the update of 159 and the forward of 160; reload / test memory. Wrong: learning rate, batch, mask."""
EXPECT = {"cause": ["weight"], "step": [160, 160], "place": r"(encoder|decoder)(\.weight)?", "rank": 0,
          "wrong": ["learning rate", "[Mm]ask", "leave out samples"], "right": "weight|memory|checkpoint|reload"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(0); torch.set_num_threads(1)
V, D, T, B = 60, 40, 16, 12

class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(V, D)
        self.rnn = nn.LSTM(D, D, 2)
        self.drop = nn.Dropout(0.1)
        self.decoder = nn.Linear(D, V)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        self.decoder.weight = self.encoder.weight
    def forward(self, ids, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(ids)), hidden)
        return self.decoder(self.drop(out)), hidden

chain = torch.softmax(3 * torch.randn(V, V), 1)
def stream(n):
    x = [torch.randint(0, V, (B,))]
    for _ in range(n):
        x.append(torch.multinomial(chain[x[-1]], 1).squeeze(1))
    return torch.stack(x)

lm = LM()
opt = torch.optim.SGD(lm.parameters(), lr=2.0)
watch = rangewatch.attach(lm, opt)
data, hidden = stream(T * 260 + 1), (torch.zeros(2, B, D), torch.zeros(2, B, D))
for step in range(240):
    if step == 160:
        with torch.no_grad():
            bits = lm.encoder.weight.view(torch.int32)
            bits[7, 3] ^= 1 << 30
    hidden = tuple(h.detach() for h in hidden)
    ids, nxt = data[step * T:(step + 1) * T], data[step * T + 1:(step + 1) * T + 1]
    logits, hidden = lm(ids, hidden)
    loss = F.cross_entropy(logits.reshape(-1, V), nxt.reshape(-1))
    watch.log(loss=loss, ppl=loss.detach().exp())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(lm.parameters(), 0.25)
    opt.step()
